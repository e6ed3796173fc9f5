// Products and convolutions of integers by cuBLASLt and cuDNN, which multiply i8 by i8 into i32: operands and results pass through the
// kernels of kernels/integers.h.

#include <algorithm>
#include <optional>

#include "libcore/backends/cuda/integer_map.h"
#include "libcore/backends/cuda/library_convolutions.h"
#include "libcore/backends/cuda/library_products.h"

namespace galley {
namespace {

constexpr int64_t kChannels = 16;  // the libraries read so many integers at once
int64_t whole(int64_t count) { return (count + kChannels - 1) / kChannels * kChannels; }
int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// u8 becomes i8.
int shift_of(DType dtype) { return dtype == DType::kU8 ? 128 : 0; }

/// Scratch memory: packed x, packed weights and their sums, sums of products, and what the library needs.
struct Places {
  int64_t x = 0, weight = 0, weight_sums = 0, sums = 0, workspace = 0, end = 0;
  Places(int64_t x_bytes, int64_t weight_bytes, int64_t outputs, int64_t results, int64_t workspace_bytes)
      : weight(aligned(x_bytes)),
        weight_sums(weight + aligned(weight_bytes)),
        sums(weight_sums + aligned(4 * outputs)),
        workspace(sums + aligned(4 * results)),
        end(workspace + aligned(workspace_bytes)) {}
};

void set(const Shape& shape, const Shape& strides, int64_t* sizes, int64_t* steps) {
  for (int d = 0; d < 4; ++d) {
    sizes[d] = shape[d];
    steps[d] = strides[d];
  }
}
void pack(Stream& stream, const device::PackCall& call) {
  const int64_t pixels = (call.size[2] + 2 * call.border[0]) * (call.size[3] + 2 * call.border[1]);
  launch_elements(stream, "pack_integers", call.size[0] * pixels * call.channels / 4, call);
}
void pack(Stream& stream, const device::PackWeightsCall& call) {
  launch_elements(stream, "pack_integer_weights", call.outputs * device::kThreads, call);
}
void finish(Stream& stream, const device::IntegerResultCall& call) {
  launch_elements(stream, "integer_results", call.size[0] * call.size[1] * call.size[2] * call.size[3], call);
}

ProductForm form_of(const KernelQuery& query) {
  const Shape& weight = query.in(1).shape;
  ProductForm form{.dtype = DType::kI8, .b_transposed = true};
  form.n = whole(weight[0]);
  form.k = whole(weight[1]);
  form.m = weight[0] == 0 ? 0 : query.out(0).elements() / weight[0];
  return form;
}
Support supports_linear(const KernelQuery& query) {
  if (const Support formats = only_contiguous(query); !formats) return formats;
  if (query.in(1).elements() == 0) return Support::no("empty operands");
  const std::string reason = library_declines(form_of(query));
  return reason.empty() ? Support::yes() : Support::no(reason);
}

/// x weight^T, of integers, or of real values that become integers by their range; by the own kernel on a GPU for which the library has no
/// algorithm.
class Linear : public PreparedKernel {
 public:
  Linear(const KernelQuery& query, std::unique_ptr<PreparedKernel> own)
      : form_(form_of(query)),
        product_(form_),
        own_(std::move(own)),
        places_(form_.m * form_.k, form_.n * form_.k, form_.n, form_.m * form_.n, product_.workspace_bytes()) {
    const int64_t outputs = query.in(1).shape[0], inputs = query.in(1).shape[1];
    x_.type = device::kU8;
    x_.shift = 128;
    set({form_.m, inputs, 1, 1}, {inputs, 1, 1, 1}, x_.size, x_.steps);
    x_.channels = form_.k;
    set({outputs, inputs, 1, 1}, {inputs, 1, 1, 1}, weight_.size, weight_.steps);
    weight_.outputs = form_.n;
    weight_.channels = form_.k;
    set({form_.m, outputs, 1, 1}, {outputs, 1, 1, 1}, result_.size, result_.steps);
    result_.line = form_.n;
    result_.y_map = map_of(DType::kF32, 1, 0);
    if (query.node.is("dynamic_quantized_linear")) {
      range_.emplace(query);
      result_.activation = static_cast<int>(query.attrs<DynamicQuantizedLinearAttrs>().activation);
      result_.x_map = map_of(DType::kU8, 1, 0);
    } else {
      const auto& attrs = query.attrs<QuantizedLinearAttrs>();
      x_.type = type_of(query.in(0));
      x_.shift = shift_of(query.in(0).dtype);
      result_.activation = static_cast<int>(attrs.activation);
      result_.x_map = map_of(query.in(0).dtype, attrs.input_scale, attrs.input_zero_point);
      result_.y_map = map_of(attrs);
    }
    result_.shift = x_.shift;
  }
  int64_t scratch_bytes() const override {
    return std::max(own_->scratch_bytes(), places_.end + (range_ ? aligned(range_->scratch_bytes()) : 0));
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* memory = static_cast<std::byte*>(args.scratch);
    device::PackCall x = x_;
    device::PackWeightsCall weight = weight_;
    device::IntegerResultCall result = result_;
    x.from = args.inputs[0];
    if (range_) {
      const DynamicRange::Result integers = range_->run(stream, args.inputs[0], memory + places_.end);
      x.from = integers.q;
      result.map = integers.map;
    }
    x.to = memory + places_.x;
    weight.from = args.in<int8_t>(1);
    weight.to = reinterpret_cast<int8_t*>(memory + places_.weight);
    weight.sums = reinterpret_cast<int*>(memory + places_.weight_sums);
    pack(stream, x);
    pack(stream, weight);
    void* sums = memory + places_.sums;
    if (!product_.run(stream, x.to, weight.to, nullptr, sums, memory + places_.workspace)) return own_->run(stream, args);
    result.sums = static_cast<const int*>(sums);
    result.weight_sums = weight.sums;
    result.weight_scale = args.in<float>(2);
    result.bias = args.in<float>(3);
    result.y = args.outputs[0];
    finish(stream, result);
  }

 private:
  ProductForm form_;
  LibraryProduct product_;
  std::unique_ptr<PreparedKernel> own_;
  Places places_;
  device::PackCall x_{};
  device::PackWeightsCall weight_{};
  device::IntegerResultCall result_{};
  std::optional<DynamicRange> range_;
};

/// Whether x may be read as it is: no border, or one of zeros.
bool reads_plain(const KernelQuery& query) {
  const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
  const auto padding = pair(attrs.padding);
  return query.in(0).dtype == DType::kI8 && query.in(0).format.is_channels_last() && query.in(0).shape[1] % kChannels == 0 &&
         (attrs.input_zero_point == 0 || (padding[0] == 0 && padding[1] == 0));
}
/// In channels_last, with the border as a part of x unless x is read as it is.
ConvolutionForm convolution_form(const KernelQuery& query) {
  const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
  const Shape &x = query.in(0).shape, &weight = query.in(1).shape, &y = query.out(0).shape;
  const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
  const bool plain = reads_plain(query);
  ConvolutionForm form{.dtype = DType::kI8};
  const auto set = [](int64_t* sizes, int64_t* steps, int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t given[] = {n, c, h, w}, last[] = {c * h * w, 1, c * w, c};
    std::copy(given, given + 4, sizes);
    std::copy(last, last + 4, steps);
  };
  set(form.x_size, form.x_steps, x[0], whole(x[1]), x[2] + (plain ? 0 : 2 * padding[0]), x[3] + (plain ? 0 : 2 * padding[1]));
  set(form.weight_size, form.weight_steps, whole(weight[0]), whole(weight[1]), weight[2], weight[3]);
  set(form.y_size, form.y_steps, y[0], whole(y[1]), y[2], y[3]);
  for (size_t d = 0; d < 2; ++d) {
    form.stride[d] = stride[d];
    form.padding[d] = plain ? padding[d] : 0;
    form.dilation[d] = dilation[d];
  }
  return form;
}
Support supports_conv(const KernelQuery& query) {
  if (query.attrs<QuantizedConv2dAttrs>().groups != 1) return Support::no("groups");
  for (const TensorType* type : {&query.in(0), &query.in(1), &query.out(0)})
    if (type->elements() == 0) return Support::no("empty operands");
  if (query.has(4) && query.in(4).format != query.out(0).format) return Support::no("operands of different formats");
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  std::string reason;
  return library_convolution(gpu_of(query), convolution_form(query), reason) != nullptr ? Support::yes() : Support::no(reason);
}

class Conv : public PreparedKernel {
 public:
  explicit Conv(const KernelQuery& query)
      : form_(convolution_form(query)), plan_(plan_of(query)), plain_(reads_plain(query)), places_(places()) {
    const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
    const auto padding = pair(attrs.padding);
    const DType dtype = query.in(0).dtype;
    const auto set_type = [](const TensorType& type, int64_t* sizes, int64_t* steps) {
      set(type.shape, type.format.strides(type.shape), sizes, steps);
    };
    x_.type = type_of(dtype);
    x_.shift = shift_of(dtype);
    x_.border_value = static_cast<int>(attrs.input_zero_point) - x_.shift;
    set_type(query.in(0), x_.size, x_.steps);
    x_.channels = form_.x_size[1];
    std::copy(padding.begin(), padding.end(), x_.border);
    set_type(query.in(1), weight_.size, weight_.steps);
    weight_.outputs = form_.y_size[1];
    weight_.channels = form_.x_size[1];
    result_.x_map = map_of(dtype, attrs.input_scale, attrs.input_zero_point);
    result_.y_map = map_of(attrs);
    if (query.has(4)) result_.residual_map = map_of(query.in(4).dtype, attrs.residual_scale, attrs.residual_zero_point);
    result_.activation = static_cast<int>(attrs.activation);
    result_.shift = x_.shift;
    set_type(query.out(0), result_.size, result_.steps);
    result_.line = form_.y_size[1];
  }
  int64_t scratch_bytes() const override { return places_.end; }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* memory = static_cast<std::byte*>(args.scratch);
    device::PackCall x = x_;
    device::PackWeightsCall weight = weight_;
    device::IntegerResultCall result = result_;
    x.from = args.inputs[0];
    x.to = plain_ ? const_cast<void*>(x.from) : memory + places_.x;
    if (!plain_) pack(stream, x);
    weight.from = args.in<int8_t>(1);
    weight.to = reinterpret_cast<int8_t*>(memory + places_.weight);
    weight.sums = reinterpret_cast<int*>(memory + places_.weight_sums);
    pack(stream, weight);
    void* sums = memory + places_.sums;
    plan_->run(stream, {.x = x.to, .weight = weight.to, .y = sums}, memory + places_.workspace);
    result.sums = static_cast<const int*>(sums);
    result.weight_sums = weight.sums;
    result.weight_scale = args.in<float>(2);
    result.bias = args.in<float>(3);
    result.residual = args.in<void>(4);
    result.y = args.outputs[0];
    finish(stream, result);
  }

 private:
  static std::shared_ptr<const LibraryConvolution> plan_of(const KernelQuery& query) {
    std::string reason;
    auto plan = library_convolution(gpu_of(query), convolution_form(query), reason);
    GALLEY_ASSERT(plan != nullptr, reason);
    return plan;
  }
  Places places() const {
    const auto elements = [](const int64_t* sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; };
    return {plain_ ? 0 : elements(form_.x_size), elements(form_.weight_size), form_.y_size[1], elements(form_.y_size),
            plan_->workspace_bytes()};
  }

  ConvolutionForm form_;
  std::shared_ptr<const LibraryConvolution> plan_;
  bool plain_;
  Places places_;
  device::PackCall x_{};
  device::PackWeightsCall weight_{};
  device::IntegerResultCall result_{};
};

/// With the own kernel of the operator, which computes the same.
std::unique_ptr<PreparedKernel> prepare_linear(const KernelQuery& query) {
  for (const Kernel& kernel : cuda_quantized())
    if (kernel.op == query.node.op->name) return std::make_unique<Linear>(query, kernel.prepare(query));
  throw InternalError(cat("no own kernel of ", query.node.op->name));
}

constexpr Kernel kKernels[] = {
    {"quantized_linear", "cublaslt_i8", supports_linear, prepare_linear},
    {"dynamic_quantized_linear", "cublaslt_i8", supports_linear, prepare_linear},
    {"quantized_conv2d", "cudnn_i8", supports_conv, prepare_cuda<Conv>},
};

}  // namespace

std::span<const Kernel> cuda_library_integers() { return kKernels; }

}  // namespace galley
