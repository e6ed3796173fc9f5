// Products and convolutions of integers by cuBLASLt, which multiplies i8 by i8 into i32: operands and results pass through the kernels of
// kernels/integers.h. A convolution is a product of its windows. (cuDNN 9.14 has plans for i8 to i32, but their results are wrong on an
// H200.)

#include <algorithm>
#include <array>
#include <optional>

#include "libcore/backends/cuda/integer_map.h"
#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/library_products.h"

namespace galley {
namespace {

int64_t multiple(int64_t count, int64_t of) { return (count + of - 1) / of * of; }
int64_t whole(int64_t count) { return multiple(count, 16); }  // the library reads so many integers at once
int64_t aligned(int64_t bytes) { return multiple(bytes, 256); }

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
  launch_elements(stream, "pack_integers", call.size[0] * call.result[0] * call.result[1] * (call.row / 4), call);
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
    for (int* ones : {x_.kernel, x_.stride, x_.dilation, x_.result}) std::fill(ones, ones + 2, 1);
    x_.channels = x_.row = static_cast<int>(form_.k);
    set({outputs, inputs, 1, 1}, {inputs, 1, 1, 1}, weight_.size, weight_.steps);
    weight_.outputs = form_.n;
    weight_.channels = weight_.row = form_.k;
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
      x_.shift = query.in(0).dtype == DType::kU8 ? 128 : 0;
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

/// Windows are products of at most so many bytes.
constexpr int64_t kMostWindows = 64 << 20;

/// Whether x already has the rows of its windows.
bool reads_plain(const KernelQuery& query) {
  const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
  const Shape &x = query.in(0).shape, &weight = query.in(1).shape;
  const auto stride = pair(attrs.stride), padding = pair(attrs.padding);
  const auto are = [](const auto& pair, int64_t value) { return pair[0] == value && pair[1] == value; };
  return query.in(0).dtype == DType::kI8 && query.in(0).format.is_channels_last() && x[1] == whole(x[1]) && weight[2] * weight[3] == 1 &&
         are(stride, 1) && are(padding, 0);
}
/// The product of some images: as many as kMostWindows allows of a number that divides the batch.
struct ConvProduct {
  ProductForm form;
  int64_t images;
};
ConvProduct product_of(const KernelQuery& query) {
  const Shape &weight = query.in(1).shape, &y = query.out(0).shape;
  ProductForm form{.dtype = DType::kI8, .b_transposed = true};
  form.n = whole(weight[0]);
  form.k = whole(weight[2] * weight[3] * multiple(weight[1], 4));
  int64_t images = std::clamp<int64_t>(kMostWindows / (y[2] * y[3] * form.k), 1, y[0]);
  while (y[0] % images != 0) --images;
  form.m = images * y[2] * y[3];
  return {form, images};
}
Support supports_conv(const KernelQuery& query) {
  if (query.attrs<QuantizedConv2dAttrs>().groups != 1) return Support::no("groups");
  for (const TensorType* type : {&query.in(0), &query.in(1), &query.out(0)})
    if (type->elements() == 0) return Support::no("empty operands");
  if (query.has(4) && query.in(4).format != query.out(0).format) return Support::no("operands of different formats");
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  const ProductForm form = product_of(query).form;
  if (form.m * form.k >= int64_t{1} << 31) return Support::no("an image of 2 GiB");
  const std::string reason = library_declines(form);
  return reason.empty() ? Support::yes() : Support::no(reason);
}

/// By the own kernel on a GPU for which the library has no algorithm.
class Conv : public PreparedKernel {
 public:
  Conv(const KernelQuery& query, std::unique_ptr<PreparedKernel> own)
      : form_(product_of(query).form),
        images_(product_of(query).images),
        batch_(query.out(0).shape[0]),
        plain_(reads_plain(query)),
        product_(form_),
        own_(std::move(own)),
        places_(plain_ ? 0 : form_.m * form_.k, form_.n * form_.k, form_.n, form_.m * form_.n, product_.workspace_bytes()) {
    const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
    const DType dtype = query.in(0).dtype;
    const Shape &weight = query.in(1).shape, &y = query.out(0).shape;
    const auto set_type = [](const TensorType& type, int64_t* sizes, int64_t* steps) {
      set(type.shape, type.format.strides(type.shape), sizes, steps);
    };
    const auto set_pair = [](int* to, const auto& pair) { std::copy(pair.begin(), pair.end(), to); };
    x_.type = type_of(dtype);
    x_.shift = dtype == DType::kU8 ? 128 : 0;
    x_.border_value = static_cast<int>(attrs.input_zero_point) - x_.shift;
    set_type(query.in(0), x_.size, x_.steps);
    set_pair(x_.kernel, std::array{weight[2], weight[3]});
    set_pair(x_.stride, pair(attrs.stride));
    set_pair(x_.padding, pair(attrs.padding));
    set_pair(x_.dilation, pair(attrs.dilation));
    set_pair(x_.result, std::array{y[2], y[3]});
    x_.channels = static_cast<int>(multiple(weight[1], 4));
    x_.row = static_cast<int>(form_.k);
    set_type(query.in(1), weight_.size, weight_.steps);
    weight_.outputs = form_.n;
    weight_.channels = x_.channels;
    weight_.row = form_.k;
    result_.x_map = map_of(dtype, attrs.input_scale, attrs.input_zero_point);
    result_.y_map = map_of(attrs);
    if (query.has(4)) result_.residual_map = map_of(query.in(4).dtype, attrs.residual_scale, attrs.residual_zero_point);
    result_.activation = static_cast<int>(attrs.activation);
    result_.shift = x_.shift;
    set_type(query.out(0), result_.size, result_.steps);
    result_.line = form_.n;
    x_.size[0] = result_.size[0] = images_;
    x_bytes_ = images_ * x_.steps[0];
    y_bytes_ = images_ * result_.steps[0] * dtype_size(query.out(0).dtype);
    residual_bytes_ = query.has(4) ? images_ * result_.steps[0] * dtype_size(query.in(4).dtype) : 0;
  }
  int64_t scratch_bytes() const override { return std::max(own_->scratch_bytes(), places_.end); }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* memory = static_cast<std::byte*>(args.scratch);
    device::PackWeightsCall weight = weight_;
    weight.from = args.in<int8_t>(1);
    weight.to = reinterpret_cast<int8_t*>(memory + places_.weight);
    weight.sums = reinterpret_cast<int*>(memory + places_.weight_sums);
    pack(stream, weight);
    const auto *from = args.in<std::byte>(0), *residual = args.in<std::byte>(4);
    auto* y = static_cast<std::byte*>(args.outputs[0]);
    void* sums = memory + places_.sums;
    for (int64_t part = 0; part < batch_ / images_; ++part) {
      device::PackCall x = x_;
      x.from = from + part * x_bytes_;
      x.to = plain_ ? const_cast<void*>(x.from) : memory + places_.x;
      if (!plain_) pack(stream, x);
      if (!product_.run(stream, x.to, weight.to, nullptr, sums, memory + places_.workspace)) return own_->run(stream, args);
      device::IntegerResultCall result = result_;
      result.sums = static_cast<const int*>(sums);
      result.weight_sums = weight.sums;
      result.weight_scale = args.in<float>(2);
      result.bias = args.in<float>(3);
      result.residual = residual == nullptr ? nullptr : residual + part * residual_bytes_;
      result.y = y + part * y_bytes_;
      finish(stream, result);
    }
  }

 private:
  ProductForm form_;
  int64_t images_, batch_;
  bool plain_;
  LibraryProduct product_;
  std::unique_ptr<PreparedKernel> own_;
  Places places_;
  int64_t x_bytes_, y_bytes_, residual_bytes_;
  device::PackCall x_{};
  device::PackWeightsCall weight_{};
  device::IntegerResultCall result_{};
};

/// With the own kernel of the operator, which computes the same.
template <class Library>
std::unique_ptr<PreparedKernel> prepare_with_own(const KernelQuery& query) {
  for (const Kernel& kernel : cuda_quantized())
    if (kernel.op == query.node.op->name) return std::make_unique<Library>(query, kernel.prepare(query));
  throw InternalError(cat("no own kernel of ", query.node.op->name));
}

constexpr Kernel kKernels[] = {
    {"quantized_linear", "cublaslt_i8", supports_linear, prepare_with_own<Linear>},
    {"dynamic_quantized_linear", "cublaslt_i8", supports_linear, prepare_with_own<Linear>},
    {"quantized_conv2d", "cublaslt_i8", supports_conv, prepare_with_own<Conv>},
};

}  // namespace

std::span<const Kernel> cuda_library_integers() { return kKernels; }

}  // namespace galley
