// Imports QuantizeLinear and DequantizeLinear. Weights are dequantized at import; the rounding of activations stays in the graph.

#include "libcore/ops/quantize.h"

#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

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
    GALLEY_CHECK_INPUT(scale.shape().rank() == 1 && shape[static_cast<int>(axis)] == scales, "it has ", scales,
                       " scales, which does not fit axis ", axis, " of ", q.str());
    for (int i = static_cast<int>(axis) + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
  if (zero_point)
    GALLEY_CHECK_INPUT(zero_point->elements() == scales, "it has ", scales, " scales and ", zero_point->elements(), " zero points");
  const std::vector<double> steps = scale.to_doubles(),
                            zeros = zero_point ? zero_point->to_doubles() : std::vector<double>(static_cast<size_t>(scales), 0);
  Tensor result(DType::kF32, shape);
  const std::vector<double> values = q.to_doubles();
  float* out = result.data_as<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = scales == 1 ? 0 : i / static_cast<size_t>(inner) % static_cast<size_t>(scales);
    out[i] = static_cast<float>((values[i] - zeros[channel]) * steps[channel]);
  }
  return result;
}

/// The quantization parameters of an activation with one constant scale; nullopt if the scale is not constant or there is one per element
/// of an axis.
std::optional<QuantParams> params_of(const Call& c, DType dtype) {
  const std::optional<double> scale = c.scalar(1), zero = c.has(2) ? c.scalar(2) : 0;
  if (!scale || !zero) return std::nullopt;
  GALLEY_CHECK_INPUT(std::fabs(*zero) <= 255, "its zero point is ", *zero, ", but must be between -255 and 255");
  QuantParams params{.scale = *scale,
                     .zero_point = static_cast<int64_t>(*zero),
                     .dtype = dtype,
                     .qmin = dtype == DType::kU8 ? 0 : -128,
                     .qmax = dtype == DType::kU8 ? 255 : 127};
  check_quant_params(params);
  return params;
}

/// A scale or zero point, reshaped to broadcast against x: one number, or one per element of an axis.
Value aligned(Call& c, size_t input, Value x, int64_t axis) {
  const Value numbers = c.x(input);
  if (numbers.shape().elements() == 1) return reshape(numbers, Shape{});
  const int at = axis_in(axis, x.shape().rank());
  GALLEY_CHECK_INPUT(numbers.shape() == Shape({x.shape()[at]}), "input ", input, " is ", numbers.type(), ", which does not fit axis ", axis,
                     " of ", x.type());
  Shape shape;
  for (int d = 0; d < x.shape().rank(); ++d) shape.push_back(d == at ? x.shape()[at] : 1);
  return reshape(numbers, shape);
}

/// round(x / scale) + zero point, clamped to the range of the dtype.
Value quantized(Value x, Value scale, Value zero, DType dtype) {
  Value level = emit("round", {div(x, scale)});
  if (zero) level = add(level, cast(zero, DType::kF32));
  return cast(clamp(level, dtype == DType::kU8 ? 0 : -128, dtype == DType::kU8 ? 255 : 127), dtype);
}

void quantize_node(Call& c) {
  const int64_t axis = c.integer("axis", 1);
  c.integer("saturate", 1);
  const int64_t type = c.integer("output_dtype", 0);
  if (c.integer("block_size", 0) != 0) c.refuse("block-wise scales (block_size) are not supported");
  DType dtype = type == 3 ? DType::kI8 : DType::kU8;
  if (type != 0 && type != 2 && type != 3) c.refuse("output_dtype must be uint8 or int8");
  if (c.has(2)) dtype = c.item(2).value ? c.item(2).value.dtype() : c.item(2).constant.dtype();
  if (dtype != DType::kU8 && dtype != DType::kI8) c.refuse(cat("its output type is ", dtype, ", but must be uint8 or int8"));
  if (c.to.builder().training())
    c.refuse("its rounding has no gradient", "train the float model (quantize.method=qat), or only evaluate this one");
  const Value x = c.x(0);
  if (const auto params = params_of(c, dtype)) return c.set(quantize(x, *params));
  c.set(quantized(x, aligned(c, 1, x, axis), c.has(2) ? aligned(c, 2, x, axis) : Value(), dtype));
}

void dequantize_node(Call& c) {
  const int64_t axis = c.integer("axis", 1);
  if (c.integer("block_size", 0) != 0) c.refuse("block-wise scales (block_size) are not supported");
  const Item& item = c.item(0);
  const std::optional<Tensor> scale = c.constant(1), zero = c.constant(2);
  if (item.constant.defined() && !item.value && scale && scale->elements() >= 1 && (!c.has(2) || zero)) {
    if (c.node.outputs.empty()) return;
    // The weight becomes a float parameter under its original name, and is trained and quantized like any other.
    constexpr std::string_view kQuantized = "_quantized";
    std::string name = item.name;
    if (name.ends_with(kQuantized)) name.resize(name.size() - kQuantized.size());
    return c.to.set(
        c.node.outputs[0],
        {.constant = dequantized(item.constant, *scale, zero, axis), .is_weight = item.constant.shape().rank() > 0, .name = name});
  }
  const Value q = c.x(0);
  const bool bytes = q.dtype() == DType::kU8 || q.dtype() == DType::kI8;
  if (!bytes && q.dtype() != DType::kI32) c.refuse(cat("its input is ", q.type(), ", but must be uint8, int8 or int32"));
  const auto params = bytes ? params_of(c, q.dtype()) : std::nullopt;
  if (params) return c.set(dequantize(q, *params));
  Value real = cast(q, DType::kF32);
  if (c.has(2)) real = sub(real, cast(aligned(c, 2, q, axis), DType::kF32));
  c.set(mul(real, aligned(c, 1, q, axis)));
}

/// Scale and zero point from the minimum and maximum of x and 0.
void dynamic_quantize(Call& c) {
  if (c.to.builder().training()) c.refuse("its rounding has no gradient", "train the float model");
  const Value x = c.x(0), zero = c.scalar_value(DType::kF32, 0);
  const Value low = minimum(amin(x), zero), high = maximum(amax(x), zero);
  const Value range = affine(sub(high, low), 1.0 / 255);
  const Value scale = where(equal(range, zero), c.scalar_value(DType::kF32, 1), range);
  const Value point = cast(clamp(emit("round", {neg(div(low, scale))}), 0, 255), DType::kU8);
  c.set(0, quantized(x, scale, point, DType::kU8));
  c.set(1, scale);
  c.set(2, point);
}

}  // namespace

MakeTable quantize_rows() {
  return {{"QuantizeLinear", quantize_node}, {"DequantizeLinear", dequantize_node}, {"DynamicQuantizeLinear", dynamic_quantize}};
}

}  // namespace galley::onnx_import
