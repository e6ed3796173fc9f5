#pragma once
// The element-wise functions on double: for the reference, and for the 256-entry tables of integers.

#include <cmath>
#include <numbers>

namespace galley::scalar {

// The functions that elementwise_functions.h calls.
inline bool is_nan(double x) { return std::isnan(x); }
inline double select(bool mask, double a, double b) { return mask ? a : b; }
inline double keep(bool mask, double x) { return mask ? x : 0; }
inline double at_least(double x, double low) { return x < low ? low : x; }
inline double at_most(double x, double high) { return x > high ? high : x; }
inline double over(double x, double n) { return x / n; }
inline double mul_add(double a, double b, double c) { return a * b + c; }
inline double abs(double x) { return std::fabs(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline double exp(double x) { return std::exp(x); }
inline double expm1(double x) { return std::expm1(x); }
inline double log(double x) { return std::log(x); }
inline double log1p(double x) { return std::log1p(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double pow(double x, double exponent) { return std::pow(x, exponent); }
inline double floor(double x) { return std::floor(x); }
inline double round(double x) { return std::nearbyint(x); }  // the rounding mode is never changed: half to even
inline double normal(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

#include "libcore/ops/elementwise_functions.h"

}  // namespace galley::scalar
