#include "libcore/ops/f8.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/tensor/quant_params.h"

namespace galley {
namespace {

constexpr int kX = 0, kWeight = 1, kScale = 2, kBias = 3, kResidual = 4;
constexpr std::string_view kNoF8Gradient = "f8 layers are for inference";

std::vector<TensorType> infer_round(const OpContext& c) {
  check_floating(c.in(kX), "x");
  check_f8_scale(c.attrs<RoundToF8Attrs>().scale);
  return {c.in(kX)};
}

/// Scales and bias; then the type of the weight as the float layer would have it.
TensorType float_weight(const OpContext& c, double input_scale) {
  const TensorType &x = c.in(kX), &weight = c.in(kWeight);
  check_floating(x, "x");
  check_f8_scale(input_scale);
  GALLEY_CHECK(weight.dtype == DType::kF8E4M3 && weight.shape.rank() >= 2, "weight must be f8_e4m3 [O,...], not ", weight);
  const Shape outputs{weight.shape[0]};
  for (const int i : {kScale, kBias}) {
    if (!c.has(i)) continue;
    GALLEY_CHECK(c.in(i).dtype == DType::kF32 && c.in(i).shape == outputs, i == kScale ? "weight_scale" : "bias", " must be f32 ", outputs,
                 ", not ", c.in(i));
  }
  TensorType real = weight;
  real.dtype = x.dtype;
  return real;
}
std::vector<TensorType> infer_f8_linear(const OpContext& c) {
  const auto& a = c.attrs<F8LinearAttrs>();
  const TensorType weight = float_weight(c, a.input_scale);
  LinearAttrs attrs;
  attrs.activation = a.activation;
  return infer_part(linear_op(), attrs, {&c.in(kX), &weight});
}
Conv2dAttrs float_attrs(const F8Conv2dAttrs& a) {
  Conv2dAttrs attrs;
  static_cast<Conv2dWindow&>(attrs) = a;
  attrs.activation = a.activation;
  return attrs;
}
std::vector<TensorType> infer_f8_conv2d(const OpContext& c) {
  const auto& a = c.attrs<F8Conv2dAttrs>();
  const TensorType weight = float_weight(c, a.input_scale);
  return infer_part(conv2d_op(), float_attrs(a), {&c.in(kX), &weight, nullptr, given(c, kResidual)});
}

/// x / scale, rounded to float32 also where x is f64, so that all kernels round the same number to f8.
void define_round(Expansion& e) {
  const double scale = e.attrs<RoundToF8Attrs>().scale;
  const Value x = e.in(kX), by = e.constant(scale);
  const bool wide = e.compute() == DType::kF64;
  const Value ratio = wide ? reduce_precision(div(reduce_precision(x, DType::kF32), by), DType::kF32) : div(x, by);
  e.set(0, mul(cast(cast(ratio, DType::kF8E4M3), e.compute()), by));
}
/// The weight as real values: exact in f64.
Value real_weight(Expansion& e) {
  if (e.compute() == DType::kF32) return dequantize_weight(e.in(kWeight), e.in(kScale), {});
  const Value codes = cast(e.in(kWeight), e.compute()), scale = e.in(kScale);
  Shape each{scale.shape()[0]};
  while (each.rank() < codes.shape().rank()) each.push_back(1);
  return mul(codes, reshape(scale, each));
}
void define_f8_linear(Expansion& e) {
  const auto& a = e.attrs<F8LinearAttrs>();
  LinearAttrs attrs;
  attrs.activation = a.activation;
  e.set(0, linear(round_to_f8(e.in(kX), a.input_scale), real_weight(e), e.has(kBias) ? e.in(kBias) : Value(), attrs));
}
void define_f8_conv2d(Expansion& e) {
  const auto& a = e.attrs<F8Conv2dAttrs>();
  e.set(0, conv2d(round_to_f8(e.in(kX), a.input_scale), real_weight(e), e.has(kBias) ? e.in(kBias) : Value(), float_attrs(a),
                  e.has(kResidual) ? e.in(kResidual) : Value()));
}

Cost cost_f8(const OpContext& c) {
  const Shape& weight = c.in(kWeight).shape;
  const double products = weight[0] == 0 ? 0 : static_cast<double>(weight.elements() / weight[0]);
  Cost cost = operand_cost(c, 2 * products * static_cast<double>(c.out(0).elements()));
  cost.dtype = DType::kI8;  // GPUs multiply both types of 8 bits at the same rate
  return cost;
}

OpDef f8_layer(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?")},
          .outputs = {"y"},
          .no_gradient = kNoF8Gradient,
          .cost = cost_f8,
          .work = WorkClass::kProduct,
          .precision = PrecisionRule::kLow};
}

}  // namespace

void RoundToF8Attrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "a float32 value: 448 times it is the largest result", .min = 0}, scale);
}
void F8LinearAttrs::options(OptionVisitor& v) {
  v.option({.name = "input_scale", .doc = "scale of x, a float32 value", .min = 0}, input_scale);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}
void F8Conv2dAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.option({.name = "input_scale", .doc = "scale of x, a float32 value", .min = 0}, input_scale);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}

const OpDef& round_to_f8_op() {
  static const OpDef def{.name = "round_to_f8",
                         .doc = "scale * (x / scale rounded to f8_e4m3: 4 bits of exponent, 3 of fraction, +-448)",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<RoundToF8Attrs>,
                         .infer = infer_round,
                         .no_gradient = kNoF8Gradient,
                         .cost = elementwise_cost<4>,
                         .may_reuse = {{0, 0}},
                         .definition = define_round};
  return def;
}
const OpDef& f8_linear_op() {
  static const OpDef def = [] {
    OpDef op = f8_layer("f8_linear", "linear of operands in f8_e4m3, with bias and activation");
    op.make_attrs = make_options<F8LinearAttrs>;
    op.infer = infer_f8_linear;
    op.layout = {.formats = FormatRule::kContiguous};
    op.definition = define_f8_linear;
    op.cases = {"f8_linear:16x2048+1000x2048@f8_e4m3+1000+1000"};
    return op;
  }();
  return def;
}
const OpDef& f8_conv2d_op() {
  static const OpDef def = [] {
    OpDef op = f8_layer("f8_conv2d", "conv2d of operands in f8_e4m3, with bias, residual and activation");
    op.inputs.emplace_back("residual?");
    op.make_attrs = make_options<F8Conv2dAttrs>;
    op.infer = infer_f8_conv2d;
    op.layout = {.prefers_channels_last = true};
    op.definition = define_f8_conv2d;
    op.cases = {"f8_conv2d:16x64x56x56+64x64x3x3@f8_e4m3+64+64:padding=1"};
    return op;
  }();
  return def;
}

Value round_to_f8(Value x, double scale) {
  RoundToF8Attrs attrs;
  attrs.scale = scale;
  return emit("round_to_f8", {x}, attrs);
}
Value f8_linear(Value x, Value weight, Value weight_scale, Value bias, const F8LinearAttrs& attrs) {
  return emit("f8_linear", {x, weight, weight_scale, bias}, attrs);
}
Value f8_conv2d(Value x, Value weight, Value weight_scale, Value bias, const F8Conv2dAttrs& attrs, Value residual) {
  return emit("f8_conv2d", {x, weight, weight_scale, bias, residual}, attrs);
}

void linear_on_f8(IntegerBuilder& b) {
  F8LinearAttrs attrs;
  attrs.input_scale = b.map(0).scale;
  attrs.activation = b.attrs<LinearAttrs>().activation;
  b.set(f8_linear(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs));
}
void conv2d_on_f8(IntegerBuilder& b) {
  const auto& a = b.attrs<Conv2dAttrs>();
  F8Conv2dAttrs attrs;
  static_cast<Conv2dWindow&>(attrs) = a;
  attrs.input_scale = b.map(0).scale;
  attrs.activation = a.activation;
  b.set(f8_conv2d(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs, b.in(3)));
}

OpTable f8_ops() { return {&round_to_f8_op(), &f8_linear_op(), &f8_conv2d_op()}; }

}  // namespace galley
