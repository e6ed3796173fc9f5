#include "libcore/ops/unary.h"

#include "libcore/ops/emit.h"

namespace galley {

void GeluAttrs::options(OptionVisitor& v) {
  v.choice({.name = "approximate", .doc = "exact (erf) or by tanh"}, approximate, kGeluApproximationNames);
}
void PowAttrs::options(OptionVisitor& v) { v.option({.name = "exponent", .doc = "the constant exponent"}, exponent); }
void ClampAttrs::options(OptionVisitor& v) {
  v.option({.name = "min", .doc = "smallest value of the result"}, min);
  v.option({.name = "max", .doc = "largest value of the result"}, max);
}
void AffineAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "factor of x"}, scale);
  v.option({.name = "shift", .doc = "added afterwards"}, shift);
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

}  // namespace galley
