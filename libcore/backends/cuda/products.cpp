// Matrix products and convolutions, by cuBLASLt and cuDNN or the kernels of kernels/products.h.

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "libcore/backends/cuda/aligned_products.h"
#include "libcore/backends/cuda/library_convolutions.h"
#include "libcore/backends/cuda/library_products.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

bool is_short_float(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }
Support supports_types(const KernelQuery& query) {
  for (const TensorType* type : {&query.in(0), &query.in(1), &query.out(0)})
    if (!is_short_float(type->dtype)) return Support::no(cat("dtype ", type->dtype));
  return no_blocked_formats(query);
}
Support supports_conv(const KernelQuery& query) {
  if (query.has(2) && !is_short_float(query.in(2).dtype)) return Support::no(cat("a bias in ", query.in(2).dtype));
  if (query.has(3) && (query.in(3).dtype != query.out(0).dtype || query.in(3).format != query.out(0).format))
    return Support::no("a residual of another type than the result");
  return supports_types(query);
}
Support supports_conv_backward_data(const KernelQuery& query) { return query.has(2) ? Support::no("residual") : supports_types(query); }
/// In f64, as definitions of operators compute.
bool is_double(const KernelQuery& query) {
  return query.in(0).dtype == DType::kF64 && query.in(1).dtype == DType::kF64 && query.out(0).dtype == DType::kF64;
}
Support supports_product(const KernelQuery& query) {
  if (const Support formats = only_contiguous(query); !formats) return formats;
  return is_double(query) ? Support::yes() : supports_types(query);
}
bool is_plain_or_relu(Activation activation) { return activation == Activation::kNone || activation == Activation::kRelu; }
Support supports_library_linear(const KernelQuery& query) {
  if (query.has(2) && !is_short_float(query.in(2).dtype) && !is_double(query)) return Support::no("a bias of another kind");
  return supports_product(query);
}

Support supports_linear(const KernelQuery& query) {
  if (!is_plain_or_relu(query.attrs<LinearAttrs>().activation)) return Support::no("activation");
  return supports_library_linear(query);
}

/// The form of a matmul, or of a linear layer: x weight^T.
ProductForm form_of(const KernelQuery& query, bool linear) {
  const Shape &a = query.in(0).shape, &b = query.in(1).shape, &y = query.out(0).shape;
  ProductForm form{.dtype = query.in(0).dtype};
  if (linear) {
    form.b_transposed = true;
    form.k = b[1];
    form.n = b[0];
    form.m = form.n == 0 ? 0 : y.elements() / form.n;
    // What the library has no epilogue for follows in a kernel of our own, with the bias.
    form.bias = query.has(2) && is_plain_or_relu(query.attrs<LinearAttrs>().activation);
    form.relu = query.attrs<LinearAttrs>().activation == Activation::kRelu;
    return form;
  }
  const auto& attrs = query.attrs<MatmulAttrs>();
  form.a_transposed = attrs.transpose_a;
  form.b_transposed = attrs.transpose_b;
  form.m = y[-2];
  form.n = y[-1];
  form.k = a[attrs.transpose_a ? -2 : -1];
  form.batch = form.m * form.n == 0 ? 0 : y.elements() / (form.m * form.n);
  form.a_batch = a.rank() == 2 ? 0 : form.m * form.k;
  form.b_batch = b.rank() == 2 ? 0 : form.k * form.n;
  if (form.b_batch == 0 && form.a_batch == form.m * form.k && !form.a_transposed) {  // one product of all rows
    form.m *= form.batch;
    form.batch = form.batch == 0 ? 0 : 1;
    form.a_batch = 0;
  }
  return form;
}

/// By the kernel matmul_tiles. linear: x, weight, bias; matmul: a, b.
template <bool kLinear>
class Product : public PreparedKernel {
 public:
  explicit Product(const KernelQuery& query) {
    const ProductForm form = form_of(query, kLinear);
    call_.a_type = type_of(query.in(0));
    call_.b_type = type_of(query.in(1));
    call_.y_type = type_of(query.out(0));
    call_.bias_type = kLinear && query.has(2) ? type_of(query.in(2)) : device::kF32;
    call_.relu = form.relu;
    call_.m = form.m;
    call_.n = form.n;
    call_.k = form.k;
    call_.batch = form.batch;
    call_.a_batch = form.a_batch;
    call_.b_batch = form.b_batch;
    call_.a_row = form.a_transposed ? 1 : form.k;
    call_.a_column = form.a_transposed ? form.m : 1;
    call_.b_row = form.b_transposed ? 1 : form.n;
    call_.b_column = form.b_transposed ? form.k : 1;
  }
  void run(Stream& stream, const KernelArgs& args) const override { run(stream, args, false); }
  void run(Stream& stream, const KernelArgs& args, bool without_bias) const {
    constexpr int64_t kTile = 64;  // device::kTile
    device::MatmulCall call = call_;
    call.a = args.inputs[0];
    call.b = args.inputs[1];
    call.bias = kLinear && !without_bias ? args.in<void>(2) : nullptr;
    call.y = args.outputs[0];
    const int64_t tiles = call.batch * ((call.m + kTile - 1) / kTile) * ((call.n + kTile - 1) / kTile);
    launch_elements(stream, call.y_type == device::kF64 ? "matmul_tiles_double" : "matmul_tiles", tiles * device::kThreads, call);
  }

 private:
  device::MatmulCall call_{};
};

/// A bias in the dtype of the result, which the libraries want. One of another dtype is rounded first, in scratch memory.
class LibraryBias {
 public:
  /// `before`: bytes of scratch memory that others use.
  LibraryBias(const KernelQuery& query, int64_t before) : place_((before + 15) / 16 * 16), end_(before) {
    if (!query.has(2) || query.in(2).dtype == query.out(0).dtype) return;
    const DType to = query.out(0).dtype;
    call_ = {.from_type = type_of(query.in(2)), .to_type = type_of(to), .rounded = type_of(to), .elements = query.in(2).elements()};
    end_ = place_ + call_.elements * dtype_size(to);
  }
  int64_t scratch_bytes() const { return end_; }
  const void* get(Stream& stream, const KernelArgs& args) const {
    if (call_.elements == 0) return args.in<void>(2);
    device::CastCall call = call_;
    call.from = args.in<void>(2);
    call.to = static_cast<std::byte*>(args.scratch) + place_;
    launch_elements(stream, "cast_elements", call.elements, call);
    return call.to;
  }

 private:
  int64_t place_, end_;
  device::CastCall call_{};
};

/// Adds a bias and a residual to a result of the libraries, and applies an activation that they do not have.
void add_epilogue(Stream& stream, const device::EpilogueCall& call) {
  const bool packs = call.inner == 1 && call.channels % device::kPack == 0 && call.type != device::kF64 &&
                     (call.bias == nullptr || call.bias_type != device::kF64) && have_packs(call.y, call.bias, call.residual);
  if (packs) return launch_elements(stream, "epilogue_packs", call.elements / device::kPack, call);
  launch_elements(stream, "convolution_epilogue", call.elements, call);
}

/// What the libraries may do.
enum Mode : int { kExact = 0, kTf32 = 1, kAnyOrder = 2 };

template <bool kLinear, int kMode>
ProductForm library_form(const KernelQuery& query) {
  ProductForm form = form_of(query, kLinear);
  form.tf32 = (kMode & kTf32) != 0;
  form.deterministic = (kMode & kAnyOrder) == 0;
  return form;
}
template <bool kLinear, int kMode>
Support supports_library(const KernelQuery& query) {
  if (const Support own = kLinear ? supports_library_linear(query) : supports_product(query); !own) return own;
  if (query.in(0).dtype != query.in(1).dtype || query.in(0).dtype != query.out(0).dtype) return Support::no("operands of different dtypes");
  const std::string reason = library_declines(library_form<kLinear, kMode>(query));
  return reason.empty() ? Support::yes() : Support::no(reason);
}

/// By cuBLASLt; by the own kernel on a GPU for which the library has no algorithm.
template <bool kLinear, int kMode>
class FromLibrary : public PreparedKernel {
 public:
  explicit FromLibrary(const KernelQuery& query)
      : product_(library_form<kLinear, kMode>(query)),
        aligned_(AlignedProduct::of(library_form<kLinear, kMode>(query))),
        own_(query),
        bias_(query, std::max(product_.workspace_bytes(), aligned_ == nullptr ? 0 : aligned_->scratch_bytes())) {
    if constexpr (!kLinear) return;
    const Activation activation = query.attrs<LinearAttrs>().activation;
    if (is_plain_or_relu(activation)) return;
    const TensorType& y = query.out(0);
    epilogue_ = {
        .type = type_of(y), .activation = static_cast<int>(activation), .elements = y.elements(), .channels = y.shape[-1], .inner = 1};
    if (query.has(2)) epilogue_.bias_type = type_of(query.in(2));
  }
  int64_t scratch_bytes() const override { return bias_.scratch_bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    const bool follows = epilogue_.elements > 0;
    const void* bias = kLinear && !follows ? bias_.get(stream, args) : nullptr;
    const auto [a, b, y] = std::tuple(args.inputs[0], args.inputs[1], args.outputs[0]);
    const bool done =
        (aligned_ != nullptr && aligned_->run(stream, a, b, bias, y, args.scratch)) || product_.run(stream, a, b, bias, y, args.scratch);
    if (!done) own_.run(stream, args, follows);
    if (!follows) return;
    device::EpilogueCall call = epilogue_;
    call.y = y;
    call.bias = args.in<void>(2);
    add_epilogue(stream, call);
  }

 private:
  LibraryProduct product_;
  std::unique_ptr<AlignedProduct> aligned_;
  Product<kLinear> own_;
  device::EpilogueCall epilogue_{};  // of no elements: the library does all
  LibraryBias bias_;
};

/// A product of a convolution: which operands are x, the weight and y.
template <class Attrs>
device::ConvCall conv_call(const Attrs& attrs, const TensorType& x, const TensorType& weight, const TensorType& y) {
  device::ConvCall call{.x_type = type_of(x), .weight_type = type_of(weight), .y_type = type_of(y), .groups = attrs.groups};
  const auto set = [](const TensorType& type, int64_t* sizes, int64_t* steps) {
    const Shape strides = type.format.strides(type.shape);
    for (int d = 0; d < 4; ++d) {
      sizes[d] = type.shape[d];
      steps[d] = strides[d];
    }
  };
  set(x, call.x_size, call.x_steps);
  set(weight, call.weight_size, call.weight_steps);
  set(y, call.y_size, call.y_steps);
  const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
  std::copy(stride.begin(), stride.end(), call.stride);
  std::copy(padding.begin(), padding.end(), call.padding);
  std::copy(dilation.begin(), dilation.end(), call.dilation);
  return call;
}

/// What a kernel of kernels/products.h computes; the other two of x, weight and y (or its gradient) are inputs.
enum class ConvResult { kX, kWeight, kY };

template <class Attrs, ConvResult kResult>
device::ConvCall conv_call_of(const KernelQuery& query) {
  device::ConvCall call = conv_call(query.attrs<Attrs>(), kResult == ConvResult::kX ? query.out(0) : query.in(0),
                                    kResult == ConvResult::kWeight ? query.out(0) : query.in(1),
                                    kResult == ConvResult::kY ? query.out(0) : query.in(kResult == ConvResult::kX ? 0 : 1));
  if constexpr (kResult == ConvResult::kY) {
    if (query.has(2)) call.bias_type = type_of(query.in(2));
    call.activation = static_cast<int>(query.attrs<Conv2dAttrs>().activation);
  }
  return call;
}

template <class Attrs, ConvResult kResult>
class Conv : public PreparedKernel {
 public:
  explicit Conv(const KernelQuery& query) : elements_(query.out(0).shape.elements()), call_(conv_call_of<Attrs, kResult>(query)) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ConvCall call = call_;
    call.x = kResult == ConvResult::kX ? args.outputs[0] : args.inputs[0];
    call.weight = kResult == ConvResult::kWeight ? args.outputs[0] : args.inputs[1];
    call.y = kResult == ConvResult::kY ? args.outputs[0] : args.inputs[kResult == ConvResult::kX ? 0 : 1];
    if constexpr (kResult == ConvResult::kY) {
      call.bias = args.in<void>(2);
      call.residual = args.in<void>(3);
    }
    constexpr const char* kNames[] = {"conv2d_backward_data_direct", "conv2d_backward_weights_direct", "conv2d_direct"};
    // A block adds up one element of the weight's gradient, a thread one of the others.
    const int64_t threads = kResult == ConvResult::kWeight ? elements_ * device::kThreads : elements_;
    launch_elements(stream, kNames[static_cast<int>(kResult)], threads, call);
  }

 private:
  int64_t elements_;
  device::ConvCall call_;
};

/// The form of a convolution for the library.
template <class Attrs, ConvResult kResult, int kMode>
ConvolutionForm convolution_form(const KernelQuery& query) {
  constexpr ConvolutionResult kResults[] = {ConvolutionResult::kX, ConvolutionResult::kWeight, ConvolutionResult::kY};
  const device::ConvCall call = conv_call_of<Attrs, kResult>(query);
  ConvolutionForm form{.result = kResults[static_cast<int>(kResult)], .dtype = query.out(0).dtype};
  form.tf32 = (kMode & kTf32) != 0;
  form.deterministic = (kMode & kAnyOrder) == 0;
  std::copy(call.x_size, call.x_size + 4, form.x_size);
  std::copy(call.weight_size, call.weight_size + 4, form.weight_size);
  std::copy(call.y_size, call.y_size + 4, form.y_size);
  std::copy(call.x_steps, call.x_steps + 4, form.x_steps);
  std::copy(call.weight_steps, call.weight_steps + 4, form.weight_steps);
  std::copy(call.y_steps, call.y_steps + 4, form.y_steps);
  std::copy(call.stride, call.stride + 2, form.stride);
  std::copy(call.padding, call.padding + 2, form.padding);
  std::copy(call.dilation, call.dilation + 2, form.dilation);
  return form;
}
template <class Attrs, ConvResult kResult>
Support supports_own(const KernelQuery& query) {
  if constexpr (kResult == ConvResult::kY) return supports_conv(query);
  if constexpr (kResult == ConvResult::kX) return supports_conv_backward_data(query);
  return supports_types(query);
}
/// A plan for a node; `whole`: with its bias, residual and activation.
struct ConvPlan {
  std::shared_ptr<const LibraryConvolution> plan;
  bool whole = true;
};
template <class Attrs, ConvResult kResult, int kMode>
ConvPlan library_plan(const KernelQuery& query, std::string& reason) {
  const ConvolutionForm plain = convolution_form<Attrs, kResult, kMode>(query);
  if constexpr (kResult == ConvResult::kY) {
    const Activation activation = query.attrs<Conv2dAttrs>().activation;
    ConvolutionForm whole = plain;
    whole.bias = query.has(2);
    whole.residual = query.has(3);
    whole.relu = activation == Activation::kRelu;
    if (activation == Activation::kNone || activation == Activation::kRelu) {
      if (auto plan = library_convolution(gpu_of(query), whole, reason)) return {plan};
    }
    return {library_convolution(gpu_of(query), plain, reason), false};
  }
  return {library_convolution(gpu_of(query), plain, reason)};
}
template <class Attrs, ConvResult kResult, int kMode>
Support supports_library_conv(const KernelQuery& query) {
  if (const Support own = supports_own<Attrs, kResult>(query); !own) return own;
  if (query.in(0).dtype != query.in(1).dtype || query.in(0).dtype != query.out(0).dtype) return Support::no("operands of different dtypes");
  std::string reason;
  return library_plan<Attrs, kResult, kMode>(query, reason).plan != nullptr ? Support::yes() : Support::no(reason);
}

/// By cuDNN. Forward: bias, residual and relu by the same plan, if the library has one, else by a kernel of our own, as other activations.
template <class Attrs, ConvResult kResult, int kMode>
class ConvFromLibrary : public PreparedKernel {
 public:
  explicit ConvFromLibrary(const KernelQuery& query) {
    std::string reason;
    const ConvPlan chosen = library_plan<Attrs, kResult, kMode>(query, reason);
    GALLEY_ASSERT(chosen.plan != nullptr, reason);
    plan_ = chosen.plan;
    whole_ = chosen.whole;
    scratch_bytes_ = plan_->workspace_bytes();
    if constexpr (kResult == ConvResult::kY) {
      const TensorType& y = query.out(0);
      const Activation activation = query.attrs<Conv2dAttrs>().activation;
      epilogue_ = {.type = type_of(y), .activation = static_cast<int>(activation), .elements = y.elements()};
      if (query.has(2)) epilogue_.bias_type = type_of(query.in(2));
      epilogue_.channels = y.shape[1];
      epilogue_.inner = y.format.strides(y.shape)[1];
      if (whole_) bias_.emplace(query, scratch_bytes_);
      if (bias_) scratch_bytes_ = bias_->scratch_bytes();
    }
  }
  int64_t scratch_bytes() const override { return scratch_bytes_; }
  void run(Stream& stream, const KernelArgs& args) const override {
    void *first = const_cast<void*>(args.inputs[0]), *second = const_cast<void*>(args.inputs[1]), *result = args.outputs[0];
    if constexpr (kResult == ConvResult::kX) plan_->run(stream, {.x = result, .weight = second, .y = first}, args.scratch);
    if constexpr (kResult == ConvResult::kWeight) plan_->run(stream, {.x = first, .weight = result, .y = second}, args.scratch);
    if constexpr (kResult == ConvResult::kY) {
      ConvolutionOperands at{.x = first, .weight = second, .y = result};
      const void *bias = bias_ ? bias_->get(stream, args) : args.in<void>(2), *residual = args.in<void>(3);
      if (whole_) {
        at.bias = bias;
        at.residual = residual;
      }
      plan_->run(stream, at, args.scratch);
      if (whole_) return;
      device::EpilogueCall call = epilogue_;
      call.y = result;
      call.bias = bias;
      call.residual = residual;
      add_epilogue(stream, call);
    }
  }

 private:
  std::shared_ptr<const LibraryConvolution> plan_;
  bool whole_ = true;
  int64_t scratch_bytes_ = 0;
  std::optional<LibraryBias> bias_;  // of a whole plan
  device::EpilogueCall epilogue_{};
};

/// By cuDNN: x, weight -> y, sum, squares.
template <int kMode>
class ConvSums : public PreparedKernel {
 public:
  explicit ConvSums(const KernelQuery& query) {
    std::string reason;
    plan_ = plan_for(query, reason);
    GALLEY_ASSERT(plan_ != nullptr, reason);
    GALLEY_ASSERT(same_bytes(query.in(1).shape, query.in(1).format, query.in(0).format), "the weight is ", query.in(1).format);
  }
  static Support supports(const KernelQuery& query) {
    if (const Support own = supports_types(query); !own) return own;
    if (query.in(0).dtype != DType::kF16 || query.in(1).dtype != DType::kF16) return Support::no("cuDNN's are of operands in f16");
    std::string reason;
    return plan_for(query, reason) != nullptr ? Support::yes() : Support::no(reason);
  }
  int64_t scratch_bytes() const override { return plan_->workspace_bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    ConvolutionOperands at{.x = const_cast<void*>(args.inputs[0]), .weight = const_cast<void*>(args.inputs[1]), .y = args.outputs[0]};
    at.sum = args.out<float>(1);
    at.squares = args.out<float>(2);
    plan_->run(stream, at, args.scratch);
  }

 private:
  static std::shared_ptr<const LibraryConvolution> plan_for(const KernelQuery& query, std::string& reason) {
    ConvolutionForm form = convolution_form<Conv2dAttrs, ConvResult::kY, kMode>(query);
    form.statistics = true;
    // The library has no such engine for a weight of another format than the images'. Layout gives it the one of weight_format().
    const Shape steps = query.in(0).format.strides(query.in(1).shape);
    for (int d = 0; d < 4; ++d) form.weight_steps[d] = steps[d];
    return library_convolution(gpu_of(query), form, reason);
  }
  std::shared_ptr<const LibraryConvolution> plan_;
};

/// Weights are in channels_last where images are: the library has no fast engine for a mixture.
MemoryFormat weight_format(const KernelQuery& query, int input) {
  const MemoryFormat images = query.in(0).format;
  return input == 1 && images.is_channels_last() ? images : query.in(input).format;
}
MemoryFormat weight_grad_format(const KernelQuery& query, int output) {
  const MemoryFormat images = query.in(0).format;
  return images.is_channels_last() ? images : query.out(output).format;
}

using Forward = Conv2dAttrs;
using Data = Conv2dBackwardDataAttrs;
using Weights = Conv2dBackwardWeightsAttrs;

template <int kMode>
constexpr Kernel kLibrary[] = {
    {"linear", kMode& kTf32 ? "cublaslt_tf32" : "cublaslt", supports_library<true, kMode>, prepare_cuda<FromLibrary<true, kMode>>},
    {"matmul", kMode& kTf32 ? "cublaslt_tf32" : "cublaslt", supports_library<false, kMode>, prepare_cuda<FromLibrary<false, kMode>>},
    {"conv2d", kMode& kTf32 ? "cudnn_tf32" : "cudnn", supports_library_conv<Forward, ConvResult::kY, kMode>,
     prepare_cuda<ConvFromLibrary<Forward, ConvResult::kY, kMode>>, weight_format},
    {"conv2d_sums", "cudnn", ConvSums<kMode>::supports, prepare_cuda<ConvSums<kMode>>, weight_format},
    {"conv2d_backward_data", kMode& kTf32 ? "cudnn_tf32" : "cudnn", supports_library_conv<Data, ConvResult::kX, kMode>,
     prepare_cuda<ConvFromLibrary<Data, ConvResult::kX, kMode>>, weight_format},
    {"conv2d_backward_weights", kMode& kTf32 ? "cudnn_tf32" : "cudnn", supports_library_conv<Weights, ConvResult::kWeight, kMode>,
     prepare_cuda<ConvFromLibrary<Weights, ConvResult::kWeight, kMode>>, nullptr, weight_grad_format},
};
constexpr Kernel kKernels[] = {
    {"linear", "tiles", supports_linear, prepare_cuda<Product<true>>},
    {"matmul", "tiles", supports_product, prepare_cuda<Product<false>>},
    {"conv2d", "direct", supports_conv, prepare_cuda<Conv<Forward, ConvResult::kY>>, weight_format},
    {"conv2d_backward_data", "direct", supports_conv_backward_data, prepare_cuda<Conv<Data, ConvResult::kX>>, weight_format},
    {"conv2d_backward_weights", "direct", supports_types, prepare_cuda<Conv<Weights, ConvResult::kWeight>>, nullptr, weight_grad_format},
};

}  // namespace

std::span<const Kernel> cuda_products() { return kKernels; }
std::span<const Kernel> cuda_library_products(bool tf32, bool deterministic) {
  if (deterministic) return tf32 ? std::span(kLibrary<kTf32>) : std::span(kLibrary<kExact>);
  return tf32 ? std::span(kLibrary < kTf32 | kAnyOrder >) : std::span(kLibrary<kAnyOrder>);
}

}  // namespace galley
