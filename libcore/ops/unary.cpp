#include "libcore/ops/unary.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

std::vector<TensorType> same_floating(const OpContext& c) {
  check_floating(c.in(0), "x");
  return {c.in(0)};
}

std::vector<TensorType> same_number(const OpContext& c) {
  check_not_bool(c.in(0), "x");
  return {c.in(0)};
}

std::vector<TensorType> same_for_backward(const OpContext& c) {
  check_floating(c.in(0), "grad");
  check_like(c.in(0), "grad", c.in(1), "the forward value");
  return {c.in(0)};
}

using Gradient = void (*)(GradientBuilder&);

OpDef unary(std::string_view name, std::string_view doc, Gradient gradient, Cost (*cost)(const OpContext&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .infer = same_floating,
          .gradient = gradient,
          .cost = cost,
          .quantize = QuantizeRule::kTable,
          .may_reuse = {{0, 0}}};
}

OpDef number_unary(std::string_view name, std::string_view doc, Gradient gradient, Cost (*cost)(const OpContext&)) {
  OpDef def = unary(name, doc, gradient, cost);
  def.infer = same_number;
  return def;
}

/// Functions whose range or slope is too wide for low precision.
OpDef wide_unary(std::string_view name, std::string_view doc, Gradient gradient, Cost (*cost)(const OpContext&)) {
  OpDef def = unary(name, doc, gradient, cost);
  def.precision = PrecisionRule::kKeepF32;
  return def;
}

OpDef backward(std::string_view name, std::string_view doc, std::string_view second, Cost (*cost)(const OpContext&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"grad", second},
          .outputs = {"dx"},
          .infer = same_for_backward,
          .no_gradient = kNoSecondDerivative,
          .cost = cost,
          .may_reuse = {{0, 0}, {0, 1}}};
}

Value zero_like(Value x) {
  TensorType scalar;
  scalar.dtype = x.dtype();
  return full(x.graph(), scalar, 0);
}

}  // namespace

void GeluAttrs::options(OptionVisitor& v) {
  v.choice({.name = "approximate", .doc = "exact (erf) or by tanh"}, approximate, kGeluApproximationNames);
}
void PowAttrs::options(OptionVisitor& v) { v.option({.name = "exponent", .doc = "the constant exponent"}, exponent); }
void ClampAttrs::options(OptionVisitor& v) {
  v.option({.name = "min", .doc = "smaller values become this"}, min);
  v.option({.name = "max", .doc = "larger values become this"}, max);
}
void AffineAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "x is multiplied by it"}, scale);
  v.option({.name = "shift", .doc = "added afterwards"}, shift);
}

const OpDef& relu_op() {
  static const OpDef def = number_unary(
      "relu", "max(x, 0)", [](GradientBuilder& g) { g.set(0, relu_backward(g.grad(), g.out())); }, elementwise_cost<1>);
  return def;
}
const OpDef& relu6_op() {
  static const OpDef def = number_unary(
      "relu6", "min(max(x, 0), 6)", [](GradientBuilder& g) { g.set(0, relu6_backward(g.grad(), g.in(0))); }, elementwise_cost<2>);
  return def;
}
const OpDef& hardswish_op() {
  static const OpDef def = unary(
      "hardswish", "x * relu6(x + 3) / 6 (Howard et al. 2019)",
      [](GradientBuilder& g) { g.set(0, hardswish_backward(g.grad(), g.in(0))); }, elementwise_cost<5>);
  return def;
}
const OpDef& hardsigmoid_op() {
  static const OpDef def = unary(
      "hardsigmoid", "relu6(x + 3) / 6", [](GradientBuilder& g) { g.set(0, hardsigmoid_backward(g.grad(), g.in(0))); }, elementwise_cost<4>);
  return def;
}
const OpDef& sigmoid_op() {
  static const OpDef def = unary(
      "sigmoid", "1 / (1 + exp(-x))", [](GradientBuilder& g) { g.set(0, sigmoid_backward(g.grad(), g.out())); }, elementwise_cost<4>);
  return def;
}
const OpDef& silu_op() {
  static const OpDef def = unary(
      "silu", "x * sigmoid(x)", [](GradientBuilder& g) { g.set(0, silu_backward(g.grad(), g.in(0))); }, elementwise_cost<5>);
  return def;
}
const OpDef& gelu_op() {
  static const OpDef def = [] {
    OpDef op = unary(
        "gelu", "x * Phi(x), exact or by tanh (Hendrycks, Gimpel 2016)",
        [](GradientBuilder& g) { g.set(0, gelu_backward(g.grad(), g.in(0), g.attrs<GeluAttrs>())); }, elementwise_cost<5>);
    op.make_attrs = make_options<GeluAttrs>;
    return op;
  }();
  return def;
}
const OpDef& tanh_op() {
  static const OpDef def = unary(
      "tanh", "hyperbolic tangent", [](GradientBuilder& g) { g.set(0, tanh_backward(g.grad(), g.out())); }, elementwise_cost<1>);
  return def;
}
const OpDef& exp_op() {
  static const OpDef def =
      wide_unary("exp", "e to the x", [](GradientBuilder& g) { g.set(0, mul(g.grad(), g.out())); }, elementwise_cost<1>);
  return def;
}
const OpDef& log_op() {
  static const OpDef def =
      wide_unary("log", "natural logarithm", [](GradientBuilder& g) { g.set(0, div(g.grad(), g.in(0))); }, elementwise_cost<1>);
  return def;
}
const OpDef& sqrt_op() {
  static const OpDef def = wide_unary(
      "sqrt", "square root", [](GradientBuilder& g) { g.set(0, affine(div(g.grad(), g.out()), 0.5)); }, elementwise_cost<1>);
  return def;
}
const OpDef& rsqrt_op() {
  static const OpDef def = wide_unary(
      "rsqrt", "1 / sqrt(x)",
      [](GradientBuilder& g) { g.set(0, mul(g.grad(), affine(mul(g.out(), square(g.out())), -0.5))); }, elementwise_cost<2>);
  return def;
}
const OpDef& sin_op() {
  static const OpDef def = unary("sin", "sine", [](GradientBuilder& g) { g.set(0, mul(g.grad(), cos(g.in(0)))); }, elementwise_cost<1>);
  return def;
}
const OpDef& cos_op() {
  static const OpDef def =
      unary("cos", "cosine", [](GradientBuilder& g) { g.set(0, neg(mul(g.grad(), sin(g.in(0))))); }, elementwise_cost<1>);
  return def;
}
const OpDef& neg_op() {
  static const OpDef def = number_unary("neg", "-x", [](GradientBuilder& g) { g.set(0, neg(g.grad())); }, elementwise_cost<1>);
  return def;
}
const OpDef& abs_op() {
  static const OpDef def = number_unary(
      "abs", "absolute value; gradient 0 at 0",
      [](GradientBuilder& g) {
        const Value zero = zero_like(g.in(0));
        g.set(0, where(greater(g.in(0), zero), g.grad(), where(less(g.in(0), zero), neg(g.grad()), zero)));
      },
      elementwise_cost<1>);
  return def;
}
const OpDef& square_op() {
  static const OpDef def = number_unary(
      "square", "x * x", [](GradientBuilder& g) { g.set(0, mul(g.grad(), affine(g.in(0), 2))); }, elementwise_cost<1>);
  return def;
}
const OpDef& reciprocal_op() {
  static const OpDef def = wide_unary(
      "reciprocal", "1 / x", [](GradientBuilder& g) { g.set(0, neg(mul(g.grad(), square(g.out())))); }, elementwise_cost<1>);
  return def;
}
const OpDef& pow_op() {
  static const OpDef def = [] {
    OpDef op = wide_unary(
        "pow", "x to a constant exponent; a fractional one wants x >= 0",
        [](GradientBuilder& g) {
          const double exponent = g.attrs<PowAttrs>().exponent;
          // Exponents 0 and 1 apart: 0 * x^-1 would be NaN at x = 0.
          if (exponent == 0) return g.set(0, full(g.grad().graph(), g.in(0).type(), 0));
          if (exponent == 1) return g.set(0, g.grad());
          g.set(0, mul(g.grad(), affine(pow(g.in(0), exponent - 1), exponent)));
        },
        elementwise_cost<1>);
    op.make_attrs = make_options<PowAttrs>;
    return op;
  }();
  return def;
}
const OpDef& clamp_op() {
  static const OpDef def = [] {
    OpDef op = number_unary(
        "clamp", "min(max(x, min), max)",
        [](GradientBuilder& g) { g.set(0, clamp_backward(g.grad(), g.in(0), g.attrs<ClampAttrs>())); }, elementwise_cost<2>);
    op.make_attrs = make_options<ClampAttrs>;
    op.infer = [](const OpContext& c) {
      const auto& attrs = c.attrs<ClampAttrs>();
      GALLEY_CHECK(attrs.min <= attrs.max, "min ", attrs.min, " is above max ", attrs.max);
      return same_number(c);
    };
    return op;
  }();
  return def;
}
const OpDef& affine_op() {
  static const OpDef def = [] {
    OpDef op = unary(
        "affine", "x * scale + shift", [](GradientBuilder& g) { g.set(0, affine(g.grad(), g.attrs<AffineAttrs>().scale)); },
        elementwise_cost<2>);
    op.make_attrs = make_options<AffineAttrs>;
    return op;
  }();
  return def;
}

const OpDef& relu_backward_op() {
  static const OpDef def = backward("relu_backward", "grad where y > 0, else 0", "y", elementwise_cost<1>);
  return def;
}
const OpDef& relu6_backward_op() {
  static const OpDef def = backward("relu6_backward", "grad where 0 < x < 6, else 0", "x", elementwise_cost<2>);
  return def;
}
const OpDef& hardswish_backward_op() {
  static const OpDef def =
      backward("hardswish_backward", "grad * (0 up to -3, x/3 + 1/2 below 3, 1 from 3 on)", "x", elementwise_cost<4>);
  return def;
}
const OpDef& hardsigmoid_backward_op() {
  static const OpDef def = backward("hardsigmoid_backward", "grad / 6 where -3 < x < 3, else 0", "x", elementwise_cost<3>);
  return def;
}
const OpDef& sigmoid_backward_op() {
  static const OpDef def = backward("sigmoid_backward", "grad * y * (1 - y)", "y", elementwise_cost<3>);
  return def;
}
const OpDef& silu_backward_op() {
  static const OpDef def = backward("silu_backward", "grad * s * (1 + x * (1 - s)), s = sigmoid(x)", "x", elementwise_cost<8>);
  return def;
}
const OpDef& gelu_backward_op() {
  static const OpDef def = [] {
    OpDef op = backward("gelu_backward", "grad * (Phi(x) + x * phi(x)), or the derivative of the tanh form", "x", elementwise_cost<8>);
    op.make_attrs = make_options<GeluAttrs>;
    return op;
  }();
  return def;
}
const OpDef& tanh_backward_op() {
  static const OpDef def = backward("tanh_backward", "grad * (1 - y * y)", "y", elementwise_cost<3>);
  return def;
}
const OpDef& clamp_backward_op() {
  static const OpDef def = [] {
    OpDef op = backward("clamp_backward", "grad where min <= x <= max, else 0", "x", elementwise_cost<2>);
    op.make_attrs = make_options<ClampAttrs>;
    return op;
  }();
  return def;
}

Value relu(Value x) { return emit("relu", {x}); }
Value relu6(Value x) { return emit("relu6", {x}); }
Value hardswish(Value x) { return emit("hardswish", {x}); }
Value hardsigmoid(Value x) { return emit("hardsigmoid", {x}); }
Value sigmoid(Value x) { return emit("sigmoid", {x}); }
Value silu(Value x) { return emit("silu", {x}); }
Value gelu(Value x, const GeluAttrs& attrs) { return emit("gelu", {x}, attrs); }
Value tanh(Value x) { return emit("tanh", {x}); }
Value exp(Value x) { return emit("exp", {x}); }
Value log(Value x) { return emit("log", {x}); }
Value sqrt(Value x) { return emit("sqrt", {x}); }
Value rsqrt(Value x) { return emit("rsqrt", {x}); }
Value sin(Value x) { return emit("sin", {x}); }
Value cos(Value x) { return emit("cos", {x}); }
Value neg(Value x) { return emit("neg", {x}); }
Value abs(Value x) { return emit("abs", {x}); }
Value square(Value x) { return emit("square", {x}); }
Value reciprocal(Value x) { return emit("reciprocal", {x}); }
Value pow(Value x, const PowAttrs& attrs) { return emit("pow", {x}, attrs); }
Value pow(Value x, double exponent) {
  PowAttrs attrs;
  attrs.exponent = exponent;
  return pow(x, attrs);
}
Value clamp(Value x, const ClampAttrs& attrs) { return emit("clamp", {x}, attrs); }
Value clamp(Value x, double min, double max) {
  ClampAttrs attrs;
  attrs.min = min;
  attrs.max = max;
  return clamp(x, attrs);
}
Value affine(Value x, const AffineAttrs& attrs) { return emit("affine", {x}, attrs); }
Value affine(Value x, double scale, double shift) {
  AffineAttrs attrs;
  attrs.scale = scale;
  attrs.shift = shift;
  return affine(x, attrs);
}

Value relu_backward(Value grad, Value y) { return emit("relu_backward", {grad, y}); }
Value relu6_backward(Value grad, Value x) { return emit("relu6_backward", {grad, x}); }
Value hardswish_backward(Value grad, Value x) { return emit("hardswish_backward", {grad, x}); }
Value hardsigmoid_backward(Value grad, Value x) { return emit("hardsigmoid_backward", {grad, x}); }
Value sigmoid_backward(Value grad, Value y) { return emit("sigmoid_backward", {grad, y}); }
Value silu_backward(Value grad, Value x) { return emit("silu_backward", {grad, x}); }
Value gelu_backward(Value grad, Value x, const GeluAttrs& attrs) { return emit("gelu_backward", {grad, x}, attrs); }
Value tanh_backward(Value grad, Value y) { return emit("tanh_backward", {grad, y}); }
Value clamp_backward(Value grad, Value x, const ClampAttrs& attrs) { return emit("clamp_backward", {grad, x}, attrs); }

OpTable unary_ops() {
  return {&relu_op(),           &relu6_op(),          &hardswish_op(),          &hardsigmoid_op(),   &sigmoid_op(),
          &silu_op(),           &gelu_op(),           &tanh_op(),               &exp_op(),           &log_op(),
          &sqrt_op(),           &rsqrt_op(),          &sin_op(),                &cos_op(),           &neg_op(),
          &abs_op(),            &square_op(),         &reciprocal_op(),         &pow_op(),           &clamp_op(),
          &affine_op(),         &relu_backward_op(),  &relu6_backward_op(),     &hardswish_backward_op(),
          &hardsigmoid_backward_op(), &sigmoid_backward_op(), &silu_backward_op(), &gelu_backward_op(), &tanh_backward_op(),
          &clamp_backward_op()};
}

}  // namespace galley
