#include "libcore/ops/unary.h"

#include <cmath>
#include <numbers>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/scalar.h"

namespace galley {
namespace {

template <class Function>
void map(RefCall& call, Function f) {
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = f(call.in(0)[i]);
}

template <double (*kFunction)(double)>
void map_ref(RefCall& call) {
  map(call, kFunction);
}

/// grad times the derivative, which is a function of the forward's input or output.
template <double (*kDerivative)(double)>
void backward_ref(RefCall& call) {
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = call.in(0)[i] * kDerivative(call.in(1)[i]);
}

double relu_slope(double y) { return y > 0 ? 1 : 0; }
double relu6_slope(double x) { return x > 0 && x < 6 ? 1 : 0; }
double hardswish_slope(double x) { return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5; }
double hardsigmoid_slope(double x) { return x > -3 && x < 3 ? 1.0 / 6 : 0; }
double sigmoid_slope(double y) { return y * (1 - y); }
double silu_slope(double x) {
  const double s = scalar::sigmoid(x);
  return s * (1 + x * (1 - s));
}
double tanh_slope(double y) { return 1 - y * y; }

constexpr double kTanhInner = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kTanhCubic = 0.044715;

double gelu_slope(double x, GeluApproximation form) {
  if (form == GeluApproximation::kTanh) {
    const double t = std::tanh(kTanhInner * (x + kTanhCubic * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * kTanhInner * (1 + 3 * kTanhCubic * x * x);
  }
  return std::erfc(-x / std::numbers::sqrt2) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

void gelu_ref(RefCall& call) {
  const auto form = call.attrs<GeluAttrs>().approximate;
  map(call, [form](double x) { return scalar::gelu(x, form); });
}
void gelu_backward_ref(RefCall& call) {
  const auto form = call.attrs<GeluAttrs>().approximate;
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = call.in(0)[i] * gelu_slope(call.in(1)[i], form);
}
void pow_ref(RefCall& call) {
  const double exponent = call.attrs<PowAttrs>().exponent;
  map(call, [exponent](double x) { return std::pow(x, exponent); });
}
void clamp_ref(RefCall& call) {
  const auto& attrs = call.attrs<ClampAttrs>();
  map(call, [&attrs](double x) { return scalar::clip(x, attrs.min, attrs.max); });
}
void clamp_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<ClampAttrs>();
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double x = call.in(1)[i];
    call.out()[i] = x >= attrs.min && x <= attrs.max ? call.in(0)[i] : 0;
  }
}
void affine_ref(RefCall& call) {
  const auto& attrs = call.attrs<AffineAttrs>();
  map(call, [&attrs](double x) { return x * attrs.scale + attrs.shift; });
}

constexpr RefEntry kEntries[] = {
    {"relu", map_ref<scalar::relu>},
    {"relu6", map_ref<scalar::relu6>},
    {"hardswish", map_ref<scalar::hardswish>},
    {"hardsigmoid", map_ref<scalar::hardsigmoid>},
    {"sigmoid", map_ref<scalar::sigmoid>},
    {"silu", map_ref<scalar::silu>},
    {"gelu", gelu_ref},
    {"tanh", map_ref<scalar::tanh>},
    {"exp", map_ref<scalar::exp>},
    {"log", map_ref<scalar::log>},
    {"sqrt", map_ref<scalar::sqrt>},
    {"rsqrt", map_ref<scalar::rsqrt>},
    {"sin", map_ref<scalar::sin>},
    {"cos", map_ref<scalar::cos>},
    {"neg", map_ref<scalar::neg>},
    {"abs", map_ref<scalar::abs>},
    {"square", map_ref<scalar::square>},
    {"reciprocal", map_ref<scalar::reciprocal>},
    {"pow", pow_ref},
    {"clamp", clamp_ref},
    {"affine", affine_ref},
    {"relu_backward", backward_ref<relu_slope>},
    {"relu6_backward", backward_ref<relu6_slope>},
    {"hardswish_backward", backward_ref<hardswish_slope>},
    {"hardsigmoid_backward", backward_ref<hardsigmoid_slope>},
    {"sigmoid_backward", backward_ref<sigmoid_slope>},
    {"silu_backward", backward_ref<silu_slope>},
    {"gelu_backward", gelu_backward_ref},
    {"tanh_backward", backward_ref<tanh_slope>},
    {"clamp_backward", clamp_backward_ref},
};

}  // namespace

std::span<const RefEntry> ref_unary() { return kEntries; }

}  // namespace galley
