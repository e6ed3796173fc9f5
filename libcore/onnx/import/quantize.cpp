// QuantizeLinear and DequantizeLinear: of weights, done once; of activations, rounding that stays in the graph.

#include "libcore/onnx/import/import.h"
#include "libcore/ops/quantize.h"

namespace galley::onnx_import {
namespace {

/// scale * (q - zero_point) along an axis.
Tensor dequantized(const Tensor& q, const Tensor& scale, const std::optional<Tensor>& zero_point, int64_t axis) {
  const Shape& shape = q.shape();
  const int64_t scales = scale.elements();
  int64_t inner = 1;
  if (scales > 1) {
    GALLEY_CHECK_INPUT(axis >= -shape.rank() && axis < shape.rank(), "axis ", axis, " is out of range for ", q.str());
    if (axis < 0) axis += shape.rank();
    GALLEY_CHECK_INPUT(scale.shape().rank() == 1 && shape[static_cast<int>(axis)] == scales, "it has ", scales, " scales along axis ", axis, " of ", q.str());
    for (int i = static_cast<int>(axis) + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
  if (zero_point) GALLEY_CHECK_INPUT(zero_point->elements() == scales, "it has ", scales, " scales and ", zero_point->elements(), " zero points");
  const std::vector<double> steps = scale.to_doubles(), zeros = zero_point ? zero_point->to_doubles() : std::vector<double>(static_cast<size_t>(scales), 0);
  Tensor result(DType::kF32, shape);
  const std::vector<double> values = q.to_doubles();
  float* out = result.data_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = scales == 1 ? 0 : i / static_cast<size_t>(inner) % static_cast<size_t>(scales);
    out[i] = static_cast<float>((values[i] - zeros[channel]) * steps[channel]);
  }
  return result;
}

/// The map of an activation: one scale, known.
QuantParams params_of(const Call& c, DType dtype) {
  const std::optional<double> scale = c.scalar(1);
  if (!scale) c.refuse("its scale is no known number: activations have one scale", "quantize the activations per tensor");
  QuantParams params{.scale = *scale, .dtype = dtype, .qmin = dtype == DType::kU8 ? 0 : -128, .qmax = dtype == DType::kU8 ? 255 : 127};
  if (c.has(2)) {
    const std::optional<double> zero = c.scalar(2);
    GALLEY_CHECK_INPUT(zero.has_value(), "its zero point is not known");
    params.zero_point = static_cast<int64_t>(*zero);
  }
  check_quant_params(params);
  return params;
}

void quantize_node(Call& c) {
  c.integer("axis", 1);
  c.integer("saturate", 1);
  c.integer("output_dtype", 0);
  c.integer("block_size", 0);
  const std::optional<Tensor> zero = c.constant(2);
  const DType dtype = zero ? zero->dtype() : DType::kU8;
  if (dtype != DType::kU8 && dtype != DType::kI8) c.refuse(cat("it makes integers of ", dtype, ", uint8 and int8 are known"));
  if (c.to.builder().training()) c.refuse("its rounding has no gradient", "train the float model (quantize.method=qat), or evaluate this one");
  c.set(quantize(c.x(0), params_of(c, dtype)));
}

void dequantize_node(Call& c) {
  const int64_t axis = c.integer("axis", 1);
  if (c.integer("block_size", 0) != 0) c.refuse("its scales are one a block");
  const Item& item = c.item(0);
  if (item.constant.defined() && !item.value) {
    const std::optional<Tensor> scale = c.constant(1), zero = c.constant(2);
    GALLEY_CHECK_INPUT(scale && scale->elements() >= 1 && (!c.has(2) || zero), "the scale of a weight is not known");
    if (c.node.outputs.empty()) return;
    // A weight in floats from here on, under the name that it had: trained and quantized anew as any other.
    constexpr std::string_view kQuantized = "_quantized";
    std::string name = item.name;
    if (name.ends_with(kQuantized)) name.resize(name.size() - kQuantized.size());
    return c.to.set(c.node.outputs[0], {.constant = dequantized(item.constant, *scale, zero, axis), .is_weight = item.constant.shape().rank() > 0, .name = name});
  }
  const Value q = c.x(0);
  if (q.dtype() != DType::kU8 && q.dtype() != DType::kI8) c.refuse(cat("its input is ", q.type(), ", uint8 and int8 are known"));
  c.set(dequantize(q, params_of(c, q.dtype())));
}

}  // namespace

MakeTable quantize_rows() { return {{"QuantizeLinear", quantize_node}, {"DequantizeLinear", dequantize_node}}; }

}  // namespace galley::onnx_import
