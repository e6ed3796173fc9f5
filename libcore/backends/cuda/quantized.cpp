// Operators on integers, by the kernels of kernels/quantized.h.

#include "libcore/ops/quantized.h"

#include <algorithm>

#include "libcore/backends/cuda/integer_map.h"
#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/pool_call.h"
#include "libcore/backends/weight_only.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

Support same_formats(const KernelQuery& query) {
  for (const TensorType* type : query.context.inputs)
    if (type != nullptr && type->shape == query.out(0).shape && type->format != query.out(0).format)
      return Support::no("operands of different formats");
  return no_blocked_formats(query);
}

/// quantize and dequantize.
template <bool kQuantizes>
class Convert : public PreparedKernel {
 public:
  explicit Convert(const KernelQuery& query) {
    call_.elements = query.in(0).elements();
    if constexpr (kQuantizes) {
      const auto& attrs = query.attrs<QuantizeAttrs>();
      call_.from_map = map_of(query.in(0).dtype, 1, 0);
      call_.to_map = map_of(attrs.dtype, attrs.scale, attrs.zero_point, attrs.qmin, attrs.qmax);
    } else {
      const auto& attrs = query.attrs<DequantizeAttrs>();
      call_.from_map = map_of(query.in(0).dtype, attrs.scale, attrs.zero_point);
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::QuantizeCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, kQuantizes ? "quantize_elements" : "dequantize_elements", call.elements, call);
  }

 private:
  device::QuantizeCall call_{};
};
Support supports_convert(const KernelQuery& query) {
  if (query.in(0).dtype != DType::kF32 && query.out(0).dtype != DType::kF32) return Support::no(cat("dtype ", query.in(0).dtype));
  return same_formats(query);
}

template <bool kProduct>
class Pair : public PreparedKernel {
 public:
  explicit Pair(const KernelQuery& query) {
    const auto& attrs = query.attrs<QuantizedBinaryAttrs>();
    const TensorType& a = query.in(0);
    call_.a_map = map_of(a.dtype, attrs.a_scale, attrs.a_zero_point);
    call_.b_map = map_of(query.in(1).dtype, attrs.b_scale, attrs.b_zero_point);
    call_.to_map = map_of(attrs);
    call_.activation = static_cast<int>(attrs.activation);
    call_.product = kProduct;
    call_.elements = a.elements();
    if (query.in(1).shape == a.shape || call_.elements == 0) return;
    call_.channels = a.shape[1];
    call_.sample = a.elements() / a.shape[0];
    call_.step_channel = a.format.strides(a.shape)[1];
    call_.b_step_sample = call_.channels;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::QuantizedPairCall call = call_;
    call.a = args.inputs[0];
    call.b = args.inputs[1];
    call.to = args.outputs[0];
    launch_elements(stream, "quantized_pairs", call.elements, call);
  }

 private:
  device::QuantizedPairCall call_{};
};
Support supports_pair(const KernelQuery& query) {
  const Shape &a = query.in(0).shape, &b = query.in(1).shape;
  if (b != a && (a.rank() != 4 || b.rank() != 4 || b[0] != a[0] || b[1] != a[1] || b.elements() != a[0] * a[1]))
    return Support::no("operands of other shapes");
  return same_formats(query);
}

class Linear : public PreparedKernel {
 public:
  explicit Linear(const KernelQuery& query) {
    const auto& attrs = query.attrs<QuantizedLinearAttrs>();
    call_.x_map = map_of(query.in(0).dtype, attrs.input_scale, attrs.input_zero_point);
    call_.y_map = map_of(attrs);
    call_.activation = static_cast<int>(attrs.activation);
    call_.n = query.in(1).shape[0];
    call_.k = query.in(1).shape[1];
    call_.m = call_.n == 0 ? 0 : query.out(0).elements() / call_.n;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::QuantizedProductCall call = call_;
    call.x = args.inputs[0];
    call.weight = args.in<int8_t>(1);
    call.weight_scale = args.in<float>(2);
    call.bias = args.in<float>(3);
    call.y = args.outputs[0];
    launch_tiles(stream, call);
  }
  static void launch_tiles(Stream& stream, const device::QuantizedProductCall& call) {
    constexpr int64_t kTile = 64;  // device::kIntegerTile
    const int64_t tiles = ((call.m + kTile - 1) / kTile) * ((call.n + kTile - 1) / kTile);
    launch_elements(stream, "quantized_tiles", tiles * device::kThreads, call);
  }

 private:
  device::QuantizedProductCall call_{};
};

class DynamicLinear : public PreparedKernel {
 public:
  explicit DynamicLinear(const KernelQuery& query) : range_(query) {
    product_.n = query.in(1).shape[0];
    product_.k = query.in(1).shape[1];
    product_.m = product_.n == 0 ? 0 : query.out(0).elements() / product_.n;
    product_.x_map = map_of(DType::kU8, 1, 0);
    product_.y_map = map_of(DType::kF32, 1, 0);
    product_.activation = static_cast<int>(query.attrs<DynamicQuantizedLinearAttrs>().activation);
  }
  int64_t scratch_bytes() const override { return range_.scratch_bytes(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    const DynamicRange::Result integers = range_.run(stream, args.inputs[0], args.scratch);
    device::QuantizedProductCall product = product_;
    product.map = integers.map;
    product.x = integers.q;
    product.weight = args.in<int8_t>(1);
    product.weight_scale = args.in<float>(2);
    product.bias = args.in<float>(3);
    product.y = args.outputs[0];
    Linear::launch_tiles(stream, product);
  }

 private:
  DynamicRange range_;
  device::QuantizedProductCall product_{};
};

class Conv : public PreparedKernel {
 public:
  explicit Conv(const KernelQuery& query) : elements_(query.out(0).elements()) {
    const auto& attrs = query.attrs<QuantizedConv2dAttrs>();
    call_.x_map = map_of(query.in(0).dtype, attrs.input_scale, attrs.input_zero_point);
    call_.y_map = map_of(attrs);
    if (query.has(4)) call_.residual_map = map_of(query.in(4).dtype, attrs.residual_scale, attrs.residual_zero_point);
    call_.activation = static_cast<int>(attrs.activation);
    device::ConvCall& conv = call_.conv;
    conv.groups = attrs.groups;
    const auto set = [](const TensorType& type, int64_t* sizes, int64_t* steps) {
      const Shape strides = type.format.strides(type.shape);
      for (int d = 0; d < 4; ++d) {
        sizes[d] = type.shape[d];
        steps[d] = strides[d];
      }
    };
    set(query.in(0), conv.x_size, conv.x_steps);
    set(query.in(1), conv.weight_size, conv.weight_steps);
    set(query.out(0), conv.y_size, conv.y_steps);
    const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
    std::copy(stride.begin(), stride.end(), conv.stride);
    std::copy(padding.begin(), padding.end(), conv.padding);
    std::copy(dilation.begin(), dilation.end(), conv.dilation);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::QuantizedConvCall call = call_;
    call.conv.x = args.inputs[0];
    call.conv.weight = args.inputs[1];
    call.weight_scale = args.in<float>(2);
    call.bias = args.in<float>(3);
    call.residual = args.in<void>(4);
    call.conv.y = args.outputs[0];
    launch_elements(stream, "quantized_conv2d_direct", elements_, call);
  }

 private:
  int64_t elements_;
  device::QuantizedConvCall call_{};
};

template <class Attrs, device::Pool kKind>
class Pool : public PreparedKernel {
 public:
  explicit Pool(const KernelQuery& query) {
    const auto& attrs = query.attrs<Attrs>();
    call_.pool = pool_call(attrs, kKind, query.in(0).shape, query.out(0).shape);
    set_steps(query.in(0), call_.pool.x_steps);
    set_steps(query.out(0), call_.pool.y_steps);
    call_.x_map = map_of(query.in(0).dtype, attrs.input_scale, attrs.input_zero_point);
    call_.y_map = map_of(attrs);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::QuantizedPoolCall call = call_;
    call.pool.x = args.inputs[0];
    call.pool.y = args.outputs[0];
    launch_elements(stream, "quantized_pool", call.pool.planes * call.pool.y_size[0] * call.pool.y_size[1], call);
  }

 private:
  device::QuantizedPoolCall call_{};
};

class StoredWeight : public PreparedKernel {
 public:
  explicit StoredWeight(const KernelQuery& query) {
    const auto& attrs = query.attrs<DequantizeWeightAttrs>();
    const Shape& shape = query.out(0).shape;
    call_.rows = shape[0];
    call_.last = shape[-1];
    device::StoredWeight& stored = call_.stored;
    stored.bits = static_cast<int>(attrs.bits);
    stored.row = shape[0] == 0 ? 0 : shape.elements() / shape[0];
    stored.group = attrs.group_size == 0 ? std::max<int64_t>(1, stored.row) : attrs.group_size;
    stored.groups = attrs.group_size == 0 ? 1 : query.in(1).shape[1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::StoredWeightCall call = call_;
    call.stored.weight = args.inputs[0];
    call.stored.scale = args.in<float>(1);
    call.stored.zero_point = args.in<int8_t>(2);
    call.to = args.outputs[0];
    launch_elements(stream, "stored_weights", call.rows * call.stored.row, call);
  }

 private:
  device::StoredWeightCall call_{};
};

/// The same weights in a linear layer of few rows.
class StoredLinear : public PreparedKernel {
 public:
  explicit StoredLinear(const KernelQuery& query) {
    const auto& attrs = query.attrs<WeightOnlyLinearAttrs>();
    call_.activation = static_cast<int>(attrs.activation);
    call_.outputs = query.in(1).shape[0];
    device::StoredWeight& stored = call_.stored;
    stored.bits = static_cast<int>(attrs.bits);
    stored.row = query.in(0).shape[-1];
    stored.group = attrs.group_size == 0 ? std::max<int64_t>(1, stored.row) : attrs.group_size;
    stored.groups = attrs.group_size == 0 ? 1 : query.in(2).shape[1];
    call_.rows = call_.outputs == 0 ? 0 : query.out(0).elements() / call_.outputs;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::StoredLinearCall call = call_;
    call.x = args.in<float>(0);
    call.stored.weight = args.inputs[1];
    call.stored.scale = args.in<float>(2);
    call.stored.zero_point = args.in<int8_t>(3);
    call.bias = args.in<float>(4);
    call.y = args.out<float>(0);
    if (call.rows > 0) launch_elements(stream, "stored_linear_rows", call.outputs * kWarp, call);
  }

 private:
  static constexpr int64_t kWarp = 32;  // threads that compute a column
  device::StoredLinearCall call_{};
};
Support supports_stored_linear(const KernelQuery& query) {
  if (query.attrs<WeightOnlyLinearAttrs>().rounded) return Support::no("rounded activations");
  const int64_t outputs = query.in(1).shape[0];
  if (outputs > 0 && query.out(0).elements() / outputs > device::kMostStoredRows)
    return Support::no(cat("more than ", device::kMostStoredRows, " rows"));
  return only_contiguous(query);
}

Support supports_stored_weight(const KernelQuery& query) {
  return query.in(0).dtype == DType::kF8E4M3 ? Support::no("f8_e4m3") : only_contiguous(query);
}

Support supports_whole_images(const KernelQuery& query) {
  if (query.has(1)) return Support::no("extents");
  return no_blocked_formats(query);
}

constexpr Kernel kKernels[] = {
    {"quantize", "elements", supports_convert, prepare_cuda<Convert<true>>},
    {"dequantize", "elements", supports_convert, prepare_cuda<Convert<false>>},
    {"quantized_add", "elements", supports_pair, prepare_cuda<Pair<false>>},
    {"quantized_mul", "elements", supports_pair, prepare_cuda<Pair<true>>},
    {"quantized_linear", "tiles", only_contiguous, prepare_cuda<Linear>},
    {"dynamic_quantized_linear", "tiles", only_contiguous, prepare_cuda<DynamicLinear>},
    {"quantized_conv2d", "direct", same_formats, prepare_cuda<Conv>},
    {"quantized_avg_pool2d", "windows", no_blocked_formats, prepare_cuda<Pool<QuantizedAvgPool2dAttrs, device::kAveragePool>>},
    {"quantized_adaptive_avg_pool2d", "windows", supports_whole_images,
     prepare_cuda<Pool<QuantizedAdaptiveAvgPool2dAttrs, device::kAdaptiveAveragePool>>},
    {"weight_only_linear", "warps", supports_stored_linear, prepare_cuda<StoredLinear>},
    {"dequantize_weight", "elements", supports_stored_weight, prepare_cuda<StoredWeight>},
};

}  // namespace

std::span<const Kernel> cuda_quantized() { return kKernels; }

}  // namespace galley
