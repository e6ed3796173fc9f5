// Definitions of quantization: conversion between real values and integers, operators on integers, and rounding in training. They compute
// in double, in which sums of products of integers are exact. Where operators are specified with a float32 division
// (tensor/quant_params.h), its steps are rounded to float32.

#include <algorithm>
#include <limits>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Value round(Value x) { return emit("round", {x}); }
Value number(Graph& graph, double value) { return full(graph, {DType::kF64, {}, {}, {}}, value); }
Value wide(Expansion& e, size_t i) { return e.has(i) ? cast(e.in(i), DType::kF64) : Value(); }
Value single(Value x) { return reduce_precision(x, DType::kF32); }
Value single_quotient(Value x, Value y) { return single(div(single(x), single(y))); }

/// scale * (q - zero_point), in double.
Value real_of(Expansion& e, size_t i, double scale, int64_t zero_point) {
  return affine(affine(wide(e, i), 1, -static_cast<double>(zero_point)), scale);
}

/// level + zero_point as an integer, clamped to low..high. NaN becomes `low`.
Value bounded(Value level, Value zero_point, int64_t low, int64_t high) {
  const Value q = add(level, zero_point), least = number(level.graph(), static_cast<double>(low));
  return minimum(where(greater(q, least), q, least), number(level.graph(), static_cast<double>(high)));
}

/// The output for a real value: the value itself, or its integer.
Value finished(Value real, const QuantizedOutput& output) {
  if (output.output_dtype == DType::kF32) return real;
  const Value level = round(div(real, number(real.graph(), output.output_scale)));
  return cast(bounded(level, number(real.graph(), static_cast<double>(output.output_zero_point)), output.output_qmin, output.output_qmax),
              output.output_dtype);
}

/// Real values of sums of products: sum * (scale * weight_scale[o]) + bias[o]. `shaped` gives vectors of channels the shape that broadcasts
/// to the output.
template <class Shaped>
Value scaled_product(Value sum, Value scale, Value weight_scale, Value bias, Shaped shaped) {
  const Value real = mul(sum, shaped(mul(weight_scale, scale)));
  return bias ? add(real, shaped(bias)) : real;
}
Value as_row(Value vector) { return vector; }
Value as_channels(Value vector) { return per_channel(vector, 4); }

Value rows_of(Value x) { return x.shape().rank() == 1 ? unsqueeze(x, 0) : x; }

struct Params {
  Value scale, zero_point;
};
/// affine_params (tensor/quant_params.h) for a range.
Params affine_map(Value min, Value max, const QuantRange& range) {
  Graph& graph = min.graph();
  const Value zero = number(graph, 0), levels = number(graph, static_cast<double>(range.max - range.min));
  const Value low = minimum(single(min), zero), high = maximum(single(max), zero);
  const Value spread = sub(high, low), narrow = single(spread);
  // If the width of the range exceeds float32, it is divided before it is rounded.
  const Value quotient = where(less(narrow, number(graph, kInfinity)), div(narrow, levels), div(spread, levels));
  const Value scale = maximum(single(quotient), number(graph, kLeastFakeScale));
  const Value zero_point = affine(round(single_quotient(low, scale)), -1, static_cast<double>(range.min));
  return {scale, clamp(zero_point, static_cast<double>(range.min), static_cast<double>(range.max))};
}

/// Reshapes scale or zero_point so that it broadcasts to x.
Value along_axis(Value vector, int rank, int64_t axis) {
  if (axis < 0) return vector;
  Shape shape;
  for (int d = 0; d < rank; ++d) shape.push_back(d == axis ? vector.shape()[0] : 1);
  return reshape(vector, shape);
}

std::vector<int64_t> all_but(int rank, int64_t axis) {
  std::vector<int64_t> axes;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != axis) axes.push_back(d);
  }
  return axes;
}

/// Values that fake_quantize and its gradients share. x is input `first`; scale and zero point follow it.
struct Fake {
  Fake(Expansion& e, size_t first) : attrs(e.attrs<FakeQuantizeAttrs>()), x(e.in(first)) {
    const int rank = x.shape().rank();
    scale = maximum(along_axis(e.in(first + 1), rank, attrs.axis), e.constant(kLeastFakeScale));
    zero_point = along_axis(e.in(first + 2), rank, attrs.axis);
    // float32 values are divided in float32, as in `quantize` and the kernels, so that all round in the same way.
    ratio = e.type(first).dtype == DType::kF64 ? div(x, scale) : single_quotient(x, scale);
    q = add(round(ratio), zero_point);
    kept = clamp(q, static_cast<double>(attrs.qmin), static_cast<double>(attrs.qmax));
  }
  const FakeQuantizeAttrs& attrs;
  Value x, scale, zero_point, ratio, q, kept;
};

/// Unpacks two 4-bit integers per byte along the last axis, the low half first.
Value unpacked(Value bytes, int64_t columns) {
  const Value high = cast(cast(affine(bytes, 1.0 / 16), DType::kI64), DType::kF64), low = sub(bytes, affine(high, 16));
  const auto with_sign = [](Value half) { return unsqueeze(where(less(half, number(half.graph(), 8)), half, affine(half, 1, -16)), -1); };
  const Value pairs = concat({with_sign(low), with_sign(high)}, -1);
  Shape joined = bytes.shape();
  joined[-1] *= 2;
  return slice(reshape(pairs, joined), -1, 0, columns);
}

}  // namespace

Value dynamic_product(Value x, Value weight, Value weight_scale, Value bias, bool reduced) {
  const Shape shape{x.shape()[0], weight.shape()[0]};
  if (x.type().elements() == 0) {
    const Value zeros = full(x.graph(), {DType::kF64, shape, {}, {}}, 0);
    return bias ? add(zeros, bias) : zeros;
  }
  const QuantRange range = quant_range(QuantDType::kUint8, reduced);
  const Value low = amin(x), high = amax(x), spread = sub(high, low);
  const Params map = affine_map(low, high, range);
  const Value q = bounded(round(single_quotient(x, map.scale)), map.zero_point, range.min, range.max);
  const Value real = scaled_product(matmul(sub(q, map.zero_point), weight, {false, true}), map.scale, weight_scale, bias, as_row);
  return add(real, sub(spread, spread));  // NaN if a value of x is not finite, because x then has no scale; else 0
}

void quantize(Expansion& e) {
  const auto& a = e.attrs<QuantizeAttrs>();
  const Value level = round(single_quotient(wide(e, 0), number(e.graph(), a.scale)));
  e.set(0, cast(bounded(level, number(e.graph(), static_cast<double>(a.zero_point)), a.qmin, a.qmax), a.dtype));
}

void dequantize(Expansion& e) {
  const auto& a = e.attrs<DequantizeAttrs>();
  e.set(0, real_of(e, 0, a.scale, a.zero_point));
}

Value dequantized_weight(Expansion& e, size_t weight, const DequantizeWeightAttrs& a, const Shape& shape) {
  const size_t scale = weight + 1, zero_point = weight + 2;
  const int64_t outputs = shape[0], weights = outputs == 0 ? 0 : shape.elements() / outputs;
  Value q = wide(e, weight);
  if (a.bits == 4) q = unpacked(q, shape[-1]);
  const int64_t groups = a.group_size == 0 ? 1 : e.in(scale).shape()[1], group = a.group_size == 0 ? weights : a.group_size;
  q = reshape(q, {outputs, weights});
  if (groups * group > weights) q = pad(q, {0, 0, 0, groups * group - weights});
  q = reshape(q, {outputs, groups, group});
  const Shape each{outputs, groups, 1};
  if (e.has(zero_point)) q = sub(q, reshape(wide(e, zero_point), each));
  q = reshape(mul(q, reshape(wide(e, scale), each)), {outputs, groups * group});
  return reshape(slice(q, 1, 0, weights), shape);
}

void dequantize_weight(Expansion& e) { e.set(0, dequantized_weight(e, 0, e.attrs<DequantizeWeightAttrs>(), e.output_type().shape)); }

void quantized_conv2d(Expansion& e) {
  const auto& a = e.attrs<QuantizedConv2dAttrs>();
  Conv2dAttrs window;
  static_cast<Conv2dWindow&>(window) = a;
  const Value sum =
      galley::conv2d(real_of(e, 0, 1, a.input_zero_point), wide(e, 1), {}, window);  // padding has the value of the zero point
  Value real = scaled_product(sum, number(e.graph(), a.input_scale), wide(e, 2), wide(e, 3), as_channels);
  if (e.has(4)) real = add(real, real_of(e, 4, a.residual_scale, a.residual_zero_point));
  e.set(0, finished(activated(a.activation, real), a));
}

void quantized_linear(Expansion& e) {
  const auto& a = e.attrs<QuantizedLinearAttrs>();
  const Value sum = matmul(rows_of(real_of(e, 0, 1, a.input_zero_point)), wide(e, 1), {false, true});
  const Value real = scaled_product(sum, number(e.graph(), a.input_scale), wide(e, 2), wide(e, 3), as_row);
  e.set(0, reshape(finished(activated(a.activation, real), a), e.output_type().shape));
}

void dynamic_quantized_linear(Expansion& e) {
  const auto& a = e.attrs<DynamicQuantizedLinearAttrs>();
  const Shape shape = e.output_type().shape;
  const Value x = wide(e, 0);
  const Value rows = reshape(x, Shape{shape[-1] == 0 ? 0 : shape.elements() / shape[-1], x.shape()[-1]});
  e.set(0, reshape(activated(a.activation, dynamic_product(rows, wide(e, 1), wide(e, 2), wide(e, 3), a.saturation == Saturation::kReduced)),
                   shape));
}

void quantized_add(Expansion& e) {
  const auto& a = e.attrs<QuantizedBinaryAttrs>();
  e.set(0, finished(activated(a.activation, add(real_of(e, 0, a.a_scale, a.a_zero_point), real_of(e, 1, a.b_scale, a.b_zero_point))), a));
}
void quantized_mul(Expansion& e) {
  const auto& a = e.attrs<QuantizedBinaryAttrs>();
  e.set(0, finished(activated(a.activation, mul(real_of(e, 0, a.a_scale, a.a_zero_point), real_of(e, 1, a.b_scale, a.b_zero_point))), a));
}

void quantized_concat(Expansion& e) {
  const auto& a = e.attrs<QuantizedConcatAttrs>();
  std::vector<Value> parts;
  for (size_t i = 0; i < e.input_count(); ++i) parts.push_back(real_of(e, i, a.input_scales[i], a.input_zero_points[i]));
  ConcatAttrs attrs;
  attrs.axis = a.axis;
  e.set(0, finished(concat(parts, attrs), a));
}

void quantized_avg_pool2d(Expansion& e) {
  const auto& a = e.attrs<QuantizedAvgPool2dAttrs>();
  AvgPool2dAttrs window;
  static_cast<AvgPoolWindow&>(window) = a;
  e.set(0, finished(affine(avg_pool2d(real_of(e, 0, 1, a.input_zero_point), window), a.input_scale), a));
}

void quantized_adaptive_avg_pool2d(Expansion& e) {
  const auto& a = e.attrs<QuantizedAdaptiveAvgPool2dAttrs>();
  AdaptiveAvgPool2dAttrs window;
  window.output_size = a.output_size;
  e.set(0, finished(affine(emit(adaptive_avg_pool2d_op(), {real_of(e, 0, 1, a.input_zero_point), e.in(1)}, window), a.input_scale), a));
}

void fake_quantize(Expansion& e) {
  const Fake f(e, 0);
  e.set(0, mul(f.scale, sub(f.kept, f.zero_point)));
}

void fake_quantize_backward(Expansion& e) {
  const Fake f(e, 1);
  e.set(0, where(equal(f.kept, f.q), e.in(0), e.constant(0)));
}

void fake_quantize_scale_backward(Expansion& e) {
  const Fake f(e, 1);
  const Value low = e.constant(static_cast<double>(f.attrs.qmin)), high = e.constant(static_cast<double>(f.attrs.qmax));
  const Value inside = sub(sub(f.q, f.zero_point), f.ratio);
  const Value slope = where(less(f.q, low), sub(low, f.zero_point), where(greater(f.q, high), sub(high, f.zero_point), inside));
  e.set(0, affine(sum_over(mul(e.in(0), slope), all_but(f.x.shape().rank(), f.attrs.axis), false), f.attrs.gradient_factor));
}

void observe_range(Expansion& e) {
  const auto& a = e.attrs<ObserveRangeAttrs>();
  ReduceAttrs others;
  others.axes = all_but(e.in(0).shape().rank(), a.axis);
  const bool whole = others.axes.empty();  // each value has its own range
  const Value low = whole ? e.in(0) : amin(e.in(0), others), high = whole ? e.in(0) : amax(e.in(0), others);
  const Value old_low = e.in(1), old_high = e.in(2), disabled = equal(e.in(3), e.constant(0));
  const auto moved = [&](Value old, Value batch) {
    const Value average = add(old, affine(sub(batch, old), a.averaging));
    const Value next =
        where(equal(old_low, e.constant(kInfinity)), where(equal(old_high, e.constant(-kInfinity)), batch, average), average);
    return where(disabled, old, next);
  };
  e.set(0, moved(old_low, low));
  e.set(1, moved(old_high, high));
}

void keep_range(Expansion& e) {
  e.assign(0, 0, e.in(2));
  e.assign(1, 1, e.in(3));
}

void qparams_from_range(Expansion& e) {
  const auto& a = e.attrs<QparamsFromRangeAttrs>();
  const QuantRange range = a.range();
  const auto middle = static_cast<double>(symmetric_params(0, range).zero_point),
             nearest = static_cast<double>(std::clamp<int64_t>(0, a.qmin, a.qmax));
  const Value low = wide(e, 0), high = wide(e, 1), spread = sub(high, low), unseen = greater(low, high);
  const auto of = [&](double value) { return number(e.graph(), value); };
  Params map = a.symmetric ? Params{} : affine_map(low, high, range);
  if (a.symmetric) {
    const Value largest = maximum(maximum(neg(low), high), of(0)), half = of(static_cast<double>(range.max - range.min) / 2);
    map.scale = maximum(single_quotient(largest, half), of(kLeastFakeScale));
    map.zero_point = broadcast_to(of(middle), low.shape());
  }
  const Value finite = less(abs(spread), of(kInfinity));
  e.set(0, where(unseen, of(1), add(map.scale, sub(spread, spread))));  // NaN if a limit is not finite
  e.set(1, where(unseen, of(a.symmetric ? middle : nearest), where(finite, map.zero_point, of(middle))));
}

}  // namespace galley::definition
