#pragma once
// What element-wise operators and fused activations compute on one number, in double: the reference's arithmetic, and what 256-entry
// tables for integers are made of.

#include <functional>

#include "libcore/ops/attrs.h"
#include "libcore/ops/unary.h"

namespace galley {

using ScalarFunction = std::function<double(double)>;

/// The function of an operator of QuantizeRule::kTable (relu, hardswish, clamp, ...) with its attributes.
ScalarFunction scalar_function(const OpDef& op, const Options* attributes);
/// The activation that is fused into another operator's result.
double activate(Activation activation, double x);

namespace scalar {

/// min(max(x, low), high) that passes NaN on, as PyTorch's.
inline double clip(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

double relu(double x);
double relu6(double x);
double hardswish(double x);
double hardsigmoid(double x);
double sigmoid(double x);
double silu(double x);
double gelu(double x, GeluApproximation form);
double tanh(double x);
double exp(double x);
double log(double x);
double sqrt(double x);
double rsqrt(double x);
double sin(double x);
double cos(double x);
double neg(double x);
double abs(double x);
double square(double x);
double reciprocal(double x);

}  // namespace scalar
}  // namespace galley
