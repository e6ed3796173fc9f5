#pragma once
// The element-wise functions (ops/elementwise_functions.h) on the numbers of a GPU.

#include "libcore/backends/cuda/kernels/portable.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace galley::device {

// The functions that elementwise_functions.h calls, on float and double.
template <class V>
GALLEY_DEVICE bool is_nan(V x) {
  return x != x;
}
template <class V>
GALLEY_DEVICE V select(bool mask, V a, V b) {
  return mask ? a : b;
}
template <class V>
GALLEY_DEVICE V keep(bool mask, V x) {
  return mask ? x : V(0);
}
template <class V>
GALLEY_DEVICE V at_least(V x, V low) {
  return x < low ? low : x;
}
template <class V>
GALLEY_DEVICE V at_most(V x, V high) {
  return x > high ? high : x;
}
template <class V, class N>
GALLEY_DEVICE V over(V x, N n) {
  return x / V(n);
}

// Of the C library, which has a name for each type.
#define GALLEY_MATH(name, of_float, of_double)                \
  GALLEY_DEVICE float name(float x) { return ::of_float(x); } \
  GALLEY_DEVICE double name(double x) { return ::of_double(x); }
GALLEY_MATH(abs, fabsf, fabs)
GALLEY_MATH(sqrt, sqrtf, sqrt)
GALLEY_MATH(exp, expf, exp)
GALLEY_MATH(expm1, expm1f, expm1)
GALLEY_MATH(log, logf, log)
GALLEY_MATH(log1p, log1pf, log1p)
GALLEY_MATH(tanh, tanhf, tanh)
GALLEY_MATH(erf, erff, erf)
GALLEY_MATH(erfc, erfcf, erfc)
GALLEY_MATH(sin, sinf, sin)
GALLEY_MATH(cos, cosf, cos)
GALLEY_MATH(floor, floorf, floor)
GALLEY_MATH(round, rintf, rint)
#undef GALLEY_MATH
GALLEY_DEVICE float pow(float x, float exponent) { return ::powf(x, exponent); }
GALLEY_DEVICE double pow(double x, double exponent) { return ::pow(x, exponent); }
GALLEY_DEVICE float mul_add(float a, float b, float c) { return ::fmaf(a, b, c); }
GALLEY_DEVICE double mul_add(double a, double b, double c) { return ::fma(a, b, c); }
template <class V>
GALLEY_DEVICE V normal(V x) {
  return V(0.5) * erfc(V(-0.70710678118654752440) * x);
}

#define GALLEY_FUNCTION GALLEY_DEVICE
#include "libcore/ops/elementwise_functions.h"
#undef GALLEY_FUNCTION

template <class F, class V>
GALLEY_DEVICE V value_of(const V* x, V first, V second) {
  if constexpr (F::values == 1 && F::numbers == 0) return F::value(x[0]);
  if constexpr (F::values == 1 && F::numbers == 1) return F::value(x[0], first);
  if constexpr (F::values == 1 && F::numbers == 2) return F::value(x[0], first, second);
  if constexpr (F::values == 2) return F::value(x[0], x[1]);
  if constexpr (F::values == 3) return F::value(x[0], x[1], x[2]);
}

// Each number of numbers by itself: nvcc 13.0 takes a requirement that expands a parameter pack for unmet.
template <class F, class V>
GALLEY_DEVICE V slope_times(V grad, V from) {
  if constexpr (requires { F::backward(grad, from, from); }) {
    return F::backward(grad, from, from);
  } else if constexpr (requires { F::slope(from, from); }) {
    return grad * F::slope(from, from);
  } else {
    return V(0);  // no backward operator
  }
}
template <class F, class V>
GALLEY_DEVICE V slope_times(V grad, V from, V first) {
  if constexpr (requires { F::slope(from, from, first); }) {
    return grad * F::slope(from, from, first);
  } else {
    return V(0);
  }
}
template <class F, class V>
GALLEY_DEVICE V slope_times(V grad, V from, V first, V second) {
  if constexpr (requires { F::backward(grad, from, from, first, second); }) {
    return F::backward(grad, from, from, first, second);
  } else if constexpr (requires { F::slope(from, from, first, second); }) {
    return grad * F::slope(from, from, first, second);
  } else {
    return V(0);
  }
}
template <class F, class V>
GALLEY_DEVICE V backward_of(V grad, V from, V first, V second) {
  if constexpr (F::numbers == 0) return slope_times<F>(grad, from);
  if constexpr (F::numbers == 1) return slope_times<F>(grad, from, first);
  if constexpr (F::numbers == 2) return slope_times<F>(grad, from, first, second);
}

/// As an element of the type.
GALLEY_DEVICE float rounded(float value, Type type) {
  return type == kBF16 ? from_bf16(to_bf16(value)) : type == kF16 ? from_f16(to_f16(value)) : value;
}

}  // namespace galley::device
