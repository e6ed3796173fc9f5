#pragma once
// The element-wise functions (ops/elementwise_functions.h) on the numbers of a GPU.

#include "libcore/backends/cuda/kernels/portable.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace galley::device {

// The functions that elementwise_functions.h calls, on float.
GALLEY_DEVICE bool is_nan(float x) { return x != x; }
GALLEY_DEVICE float select(bool mask, float a, float b) { return mask ? a : b; }
GALLEY_DEVICE float keep(bool mask, float x) { return mask ? x : float(0); }
GALLEY_DEVICE float at_least(float x, float low) { return x < low ? low : x; }
GALLEY_DEVICE float at_most(float x, float high) { return x > high ? high : x; }
GALLEY_DEVICE float over(float x, float n) { return x / n; }
GALLEY_DEVICE float mul_add(float a, float b, float c) { return ::fmaf(a, b, c); }
GALLEY_DEVICE float abs(float x) { return ::fabsf(x); }
GALLEY_DEVICE float sqrt(float x) { return ::sqrtf(x); }
GALLEY_DEVICE float exp(float x) { return ::expf(x); }
GALLEY_DEVICE float expm1(float x) { return ::expm1f(x); }
GALLEY_DEVICE float log(float x) { return ::logf(x); }
GALLEY_DEVICE float log1p(float x) { return ::log1pf(x); }
GALLEY_DEVICE float tanh(float x) { return ::tanhf(x); }
GALLEY_DEVICE float erf(float x) { return ::erff(x); }
GALLEY_DEVICE float sin(float x) { return ::sinf(x); }
GALLEY_DEVICE float cos(float x) { return ::cosf(x); }
GALLEY_DEVICE float pow(float x, float exponent) { return ::powf(x, exponent); }
GALLEY_DEVICE float floor(float x) { return ::floorf(x); }
GALLEY_DEVICE float round(float x) { return ::rintf(x); }
GALLEY_DEVICE float normal(float x) { return float(0.5) * ::erfcf(float(-0.70710678118654752440) * x); }

// The functions that elementwise_functions.h calls, on double.
GALLEY_DEVICE bool is_nan(double x) { return x != x; }
GALLEY_DEVICE double select(bool mask, double a, double b) { return mask ? a : b; }
GALLEY_DEVICE double keep(bool mask, double x) { return mask ? x : double(0); }
GALLEY_DEVICE double at_least(double x, double low) { return x < low ? low : x; }
GALLEY_DEVICE double at_most(double x, double high) { return x > high ? high : x; }
GALLEY_DEVICE double over(double x, double n) { return x / n; }
GALLEY_DEVICE double mul_add(double a, double b, double c) { return ::fma(a, b, c); }
GALLEY_DEVICE double abs(double x) { return ::fabs(x); }
GALLEY_DEVICE double sqrt(double x) { return ::sqrt(x); }
GALLEY_DEVICE double exp(double x) { return ::exp(x); }
GALLEY_DEVICE double expm1(double x) { return ::expm1(x); }
GALLEY_DEVICE double log(double x) { return ::log(x); }
GALLEY_DEVICE double log1p(double x) { return ::log1p(x); }
GALLEY_DEVICE double tanh(double x) { return ::tanh(x); }
GALLEY_DEVICE double erf(double x) { return ::erf(x); }
GALLEY_DEVICE double sin(double x) { return ::sin(x); }
GALLEY_DEVICE double cos(double x) { return ::cos(x); }
GALLEY_DEVICE double pow(double x, double exponent) { return ::pow(x, exponent); }
GALLEY_DEVICE double floor(double x) { return ::floor(x); }
GALLEY_DEVICE double round(double x) { return ::rint(x); }
GALLEY_DEVICE double normal(double x) { return double(0.5) * ::erfc(double(-0.70710678118654752440) * x); }

#define GALLEY_FUNCTION GALLEY_DEVICE
#include "libcore/ops/elementwise_functions.h"
#undef GALLEY_FUNCTION

}  // namespace galley::device
