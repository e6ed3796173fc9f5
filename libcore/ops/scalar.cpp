#include "libcore/ops/scalar.h"

#include <cmath>
#include <numbers>

namespace galley {
namespace scalar {

double relu(double x) { return x < 0 ? 0 : x; }
double relu6(double x) { return clip(x, 0, 6); }
double hardsigmoid(double x) { return relu6(x + 3) / 6; }
double hardswish(double x) { return x * hardsigmoid(x); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double gelu(double x, GeluApproximation form) {
  if (form == GeluApproximation::kNone) return x / 2 * std::erfc(-x / std::numbers::sqrt2);
  constexpr double kInner = 0.79788456080286535588;  // sqrt(2 / pi)
  return x / 2 * (1 + std::tanh(kInner * (x + 0.044715 * x * x * x)));
}
double tanh(double x) { return std::tanh(x); }
double exp(double x) { return std::exp(x); }
double log(double x) { return std::log(x); }
double sqrt(double x) { return std::sqrt(x); }
double rsqrt(double x) { return 1 / std::sqrt(x); }
double sin(double x) { return std::sin(x); }
double cos(double x) { return std::cos(x); }
double neg(double x) { return -x; }
double abs(double x) { return std::fabs(x); }
double square(double x) { return x * x; }
double reciprocal(double x) { return 1 / x; }

}  // namespace scalar

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return scalar::relu(x);
    case Activation::kRelu6: return scalar::relu6(x);
    case Activation::kHardswish: return scalar::hardswish(x);
    case Activation::kHardsigmoid: return scalar::hardsigmoid(x);
    case Activation::kSigmoid: return scalar::sigmoid(x);
    case Activation::kSilu: return scalar::silu(x);
    case Activation::kGelu: return scalar::gelu(x, GeluApproximation::kNone);
    case Activation::kTanh: return scalar::tanh(x);
  }
  GALLEY_ASSERT(false);
}

ScalarFunction scalar_function(const OpDef& op, const Options* attributes) {
  using Plain = double (*)(double);
  static constexpr std::pair<std::string_view, Plain> kPlain[] = {
      {"relu", scalar::relu}, {"relu6", scalar::relu6}, {"hardswish", scalar::hardswish}, {"hardsigmoid", scalar::hardsigmoid},
      {"sigmoid", scalar::sigmoid}, {"silu", scalar::silu}, {"tanh", scalar::tanh}, {"exp", scalar::exp}, {"log", scalar::log},
      {"sqrt", scalar::sqrt}, {"rsqrt", scalar::rsqrt}, {"sin", scalar::sin}, {"cos", scalar::cos}, {"neg", scalar::neg},
      {"abs", scalar::abs}, {"square", scalar::square}, {"reciprocal", scalar::reciprocal}};
  for (const auto& [name, function] : kPlain) {
    if (name == op.name) return function;
  }
  if (const auto* gelu = dynamic_cast<const GeluAttrs*>(attributes)) {
    return [form = gelu->approximate](double x) { return scalar::gelu(x, form); };
  }
  if (const auto* pow = dynamic_cast<const PowAttrs*>(attributes)) {
    return [exponent = pow->exponent](double x) { return std::pow(x, exponent); };
  }
  if (const auto* clamp = dynamic_cast<const ClampAttrs*>(attributes)) {
    return [low = clamp->min, high = clamp->max](double x) { return scalar::clip(x, low, high); };
  }
  if (const auto* affine = dynamic_cast<const AffineAttrs*>(attributes)) {
    return [scale = affine->scale, shift = affine->shift](double x) { return x * scale + shift; };
  }
  GALLEY_ASSERT(false, op.name, " is no function of one number");
}

}  // namespace galley
