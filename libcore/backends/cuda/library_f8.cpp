// Layers of f8_e4m3 by cuBLASLt, which multiplies f8 by f8 with sums in f32 on GPUs of compute capability 8.9 and later: operands and
// results pass through the kernels of kernels/f8.h. A convolution is a product of its windows. Older GPUs, and groups, run the same layers
// in f32 on values that are rounded to f8 (the definitions in ops/f8.h).

#include <algorithm>
#include <array>

#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/library_products.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/f8.h"

namespace galley {
namespace {

constexpr int kX = 0, kWeight = 1, kScale = 2, kBias = 3, kResidual = 4;
constexpr int kLeastCapability = 89;

int64_t f8_multiple(int64_t count, int64_t of) { return (count + of - 1) / of * of; }
int64_t f8_whole(int64_t count) { return f8_multiple(count, 16); }  // what the library wants of n and k
int64_t f8_aligned(int64_t bytes) { return f8_multiple(bytes, 256); }

bool is_short_real(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// What the products of a layer are: x [images,C,H,W] in windows of the weight's size, by the weight [O,C,h,w], to y [images,O,h,w]. A
/// linear layer is one of 1 x 1 windows.
struct F8Layer {
  Shape x_size, x_steps, weight_size, weight_steps, y_size, y_steps;
  std::array<int64_t, 2> stride{1, 1}, padding{0, 0}, dilation{1, 1};
  double input_scale = 1;
  Activation activation = Activation::kNone;

  explicit F8Layer(const KernelQuery& query) {
    const Shape& weight = query.in(kWeight).shape;
    if (query.node.is("f8_linear")) {
      const auto& attrs = query.attrs<F8LinearAttrs>();
      const int64_t outputs = weight[0], inputs = weight[1], rows = outputs == 0 ? 0 : query.out(0).elements() / outputs;
      x_size = {rows, inputs, 1, 1};
      x_steps = weight_steps = {inputs, 1, 1, 1};
      weight_size = {outputs, inputs, 1, 1};
      y_size = {rows, outputs, 1, 1};
      y_steps = {outputs, 1, 1, 1};
      input_scale = attrs.input_scale;
      activation = attrs.activation;
      return;
    }
    const auto& attrs = query.attrs<F8Conv2dAttrs>();
    const auto steps = [](const TensorType& type) { return type.format.strides(type.shape); };
    x_size = query.in(kX).shape;
    x_steps = steps(query.in(kX));
    weight_size = weight;
    weight_steps = steps(query.in(kWeight));
    y_size = query.out(0).shape;
    y_steps = steps(query.out(0));
    stride = pair(attrs.stride);
    padding = pair(attrs.padding);
    dilation = pair(attrs.dilation);
    input_scale = attrs.input_scale;
    activation = attrs.activation;
  }
  int64_t channels() const { return f8_multiple(weight_size[1], 4); }
  bool linear() const { return x_size[2] * x_size[3] * weight_size[2] * weight_size[3] == 1; }
  /// The library reads the weights as they are stored.
  bool plain_weight() const {
    return weight_size[0] == f8_whole(weight_size[0]) && weight_size[1] == f8_whole(weight_size[1]) && weight_size[2] * weight_size[3] == 1;
  }
};

/// Products are of at most so many bytes of windows, and of sums, at once.
constexpr int64_t kMostF8Windows = int64_t{64} << 20, kMostF8Sums = int64_t{256} << 20;

/// The product of some images, or rows of a linear layer: as many as these limits allow of a number that divides the batch.
struct F8Product {
  ProductForm form{.dtype = DType::kF8E4M3, .b_transposed = true};
  int64_t images = 0;
  explicit F8Product(const F8Layer& layer) {
    const Shape &weight = layer.weight_size, &y = layer.y_size;
    form.n = f8_whole(weight[0]);
    form.k = f8_whole(weight[2] * weight[3] * layer.channels());
    const int64_t pixels = y[2] * y[3], by_sums = kMostF8Sums / (4 * pixels * form.n);
    const int64_t most = std::clamp<int64_t>(layer.linear() ? by_sums : std::min(by_sums, kMostF8Windows / (pixels * form.k)), 1, y[0]);
    images = most;
    while (y[0] % images != 0) --images;
    if (layer.linear() && images * 8 < most) images = y[0];  // many small products would take longer than memory is worth
    form.m = images * y[2] * y[3];
  }
};

Support supports_f8(const KernelQuery& query) {
  const int capability = gpu_of(query).facts().capability;
  if (capability < kLeastCapability)
    return Support::no(cat("compute capability ", capability / 10, ".", capability % 10, ", f8 needs 8.9"));
  if (query.node.is("f8_conv2d") && query.attrs<F8Conv2dAttrs>().groups != 1) return Support::no("groups");
  for (const TensorType* type : {&query.in(kX), &query.in(kWeight), &query.out(0)})
    if (type->elements() == 0) return Support::no("empty operands");
  if (!is_short_real(query.in(kX).dtype)) return Support::no(cat("dtype ", query.in(kX).dtype));
  if (query.has(kResidual) && query.in(kResidual).format != query.out(0).format) return Support::no("operands of different formats");
  if (const Support formats = query.node.is("f8_linear") ? only_contiguous(query) : no_blocked_formats(query); !formats) return formats;
  const ProductForm form = F8Product(F8Layer(query)).form;
  if (std::max({form.m * form.k / 4, form.n * form.k, form.m * form.n}) >= int64_t{1} << 31)  // kernels count in 32 bits
    return Support::no("an operand of 8 GiB, a weight of 2 GiB or a result of 2^31 numbers");
  const std::string reason = library_declines(form);
  return reason.empty() ? Support::yes() : Support::no(reason);
}

void set_four(const Shape& from, int64_t* to) {
  for (int d = 0; d < 4; ++d) to[d] = from[d];
}

class F8 : public PreparedKernel {
 public:
  explicit F8(const KernelQuery& query) : F8(query, F8Layer(query)) {}
  int64_t scratch_bytes() const override { return end_; }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* memory = static_cast<std::byte*>(args.scratch);
    const auto* weight = args.in<uint8_t>(kWeight);
    if (!plain_weight_) {
      device::F8PackWeightsCall call = weight_;
      call.from = weight;
      call.to = reinterpret_cast<uint8_t*>(memory + weight_at_);
      launch_elements(stream, "pack_f8_weights", call.outputs * call.row, call);
      weight = call.to;
    }
    for (int64_t part = 0; part < parts_; ++part) {
      device::F8PackCall x = x_;
      x.from = args.in<std::byte>(kX) + part * x_bytes_;
      x.to = reinterpret_cast<uint32_t*>(memory);
      launch_elements(stream, "pack_f8", form_.m * (form_.k / 4), x);
      auto* sums = reinterpret_cast<float*>(memory + sums_at_);
      if (!product_.run(stream, x.to, weight, nullptr, sums, memory + workspace_at_)) {
        const device::F8ProductCall own{
            .a = reinterpret_cast<const uint8_t*>(x.to), .b = weight, .sums = sums, .m = form_.m, .n = form_.n, .k = form_.k};
        launch_elements(stream, "f8_product_tiles", f8_multiple(form_.m, device::kF8Tile) * f8_multiple(form_.n, device::kF8Tile), own);
      }
      device::F8ResultCall result = result_;
      result.sums = sums;
      result.weight_scale = args.in<float>(kScale);
      result.bias = args.in<float>(kBias);
      const auto* residual = args.in<std::byte>(kResidual);
      result.residual = residual == nullptr ? nullptr : residual + part * y_bytes_;
      result.y = static_cast<std::byte*>(args.outputs[0]) + part * y_bytes_;
      launch_elements(stream, "f8_results", result.size[0] * result.size[1] * result.size[2] * result.size[3], result);
    }
  }

 private:
  F8(const KernelQuery& query, const F8Layer& layer) : form_(F8Product(layer).form), product_(form_), plain_weight_(layer.plain_weight()) {
    const int64_t images = F8Product(layer).images;
    const auto set_pair = [](int* to, int64_t first, int64_t second) { to[0] = static_cast<int>(first), to[1] = static_cast<int>(second); };
    parts_ = layer.y_size[0] / images;
    x_.type = result_.type = type_of(query.in(kX));
    x_.scale = result_.x_scale = static_cast<float>(layer.input_scale);
    set_four(layer.x_size, x_.size);
    set_four(layer.x_steps, x_.steps);
    set_pair(x_.kernel, layer.weight_size[2], layer.weight_size[3]);
    set_pair(x_.stride, layer.stride[0], layer.stride[1]);
    set_pair(x_.padding, layer.padding[0], layer.padding[1]);
    set_pair(x_.dilation, layer.dilation[0], layer.dilation[1]);
    set_pair(x_.result, layer.y_size[2], layer.y_size[3]);
    x_.channels = static_cast<int>(layer.channels());
    x_.row = static_cast<int>(form_.k);
    set_four(layer.weight_size, weight_.size);
    set_four(layer.weight_steps, weight_.steps);
    weight_.outputs = form_.n;
    weight_.channels = layer.channels();
    weight_.row = form_.k;
    result_.activation = static_cast<int>(layer.activation);
    set_four(layer.y_size, result_.size);
    set_four(layer.y_steps, result_.steps);
    result_.line = form_.n;
    x_.size[0] = result_.size[0] = images;
    x_bytes_ = images * x_.steps[0] * dtype_size(query.in(kX).dtype);
    y_bytes_ = images * result_.steps[0] * dtype_size(query.out(0).dtype);
    weight_at_ = f8_aligned(form_.m * form_.k);
    sums_at_ = weight_at_ + (plain_weight_ ? 0 : f8_aligned(form_.n * form_.k));
    workspace_at_ = sums_at_ + f8_aligned(4 * form_.m * form_.n);
    end_ = workspace_at_ + f8_aligned(product_.workspace_bytes());
  }

  ProductForm form_;
  LibraryProduct product_;
  bool plain_weight_;
  int64_t parts_ = 1, x_bytes_ = 0, y_bytes_ = 0;
  int64_t weight_at_ = 0, sums_at_ = 0, workspace_at_ = 0, end_ = 0;  // places in scratch memory; x is the first
  device::F8PackCall x_{};
  device::F8PackWeightsCall weight_{};
  device::F8ResultCall result_{};
};

class RoundToF8Elements : public PreparedKernel {
 public:
  explicit RoundToF8Elements(const KernelQuery& query) {
    call_.type = type_of(query.in(0));
    call_.scale = static_cast<float>(query.attrs<RoundToF8Attrs>().scale);
    call_.elements = query.in(0).elements();
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::RoundToF8Call call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, "round_to_f8_elements", call.elements, call);
  }

 private:
  device::RoundToF8Call call_{};
};
Support supports_round_to_f8(const KernelQuery& query) {
  if (!is_short_real(query.in(0).dtype)) return Support::no(cat("dtype ", query.in(0).dtype));
  if (query.in(0).format != query.out(0).format) return Support::no("operands of different formats");
  return no_blocked_formats(query);
}

class DecodedWeight : public PreparedKernel {
 public:
  explicit DecodedWeight(const KernelQuery& query) {
    call_.elements = query.out(0).elements();
    call_.row = std::max<int64_t>(1, query.out(0).shape[0] == 0 ? 0 : call_.elements / query.out(0).shape[0]);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::F8WeightCall call = call_;
    call.from = args.in<uint8_t>(0);
    call.scale = args.in<float>(1);
    call.to = args.out<float>(0);
    launch_elements(stream, "f8_weights", call.elements, call);
  }

 private:
  device::F8WeightCall call_{};
};
Support supports_decoded_weight(const KernelQuery& query) {
  return query.in(0).dtype == DType::kF8E4M3 ? only_contiguous(query) : Support::no(cat("dtype ", query.in(0).dtype));
}

constexpr Kernel kKernels[] = {
    {"f8_linear", "cublaslt_f8", supports_f8, prepare_cuda<F8>},
    {"f8_conv2d", "cublaslt_f8", supports_f8, prepare_cuda<F8>},
    {"round_to_f8", "elements", supports_round_to_f8, prepare_cuda<RoundToF8Elements>},
    {"dequantize_weight", "f8_elements", supports_decoded_weight, prepare_cuda<DecodedWeight>},
};

}  // namespace

std::span<const Kernel> cuda_library_f8() { return kKernels; }

}  // namespace galley
