#pragma once
// The element-wise functions (ops/elementwise_functions.h) on the float of a GPU.

#include "libcore/backends/cuda/kernels/portable.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace galley::device {

// The functions that elementwise_functions.h calls.
GALLEY_DEVICE bool is_nan(float x) { return x != x; }
GALLEY_DEVICE float select(bool mask, float a, float b) { return mask ? a : b; }
GALLEY_DEVICE float keep(bool mask, float x) { return mask ? x : 0.0f; }
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
GALLEY_DEVICE float normal(float x) { return 0.5f * ::erfcf(-0.70710678118654752f * x); }

#define GALLEY_FUNCTION GALLEY_DEVICE
#include "libcore/ops/elementwise_functions.h"
#undef GALLEY_FUNCTION

}  // namespace galley::device
