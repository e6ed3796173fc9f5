#pragma once
// Elementary functions of float that the compiler vectorizes (vector_functions.h): always inlined, so that a plain loop in code of a
// Highway target becomes vector code of its instruction set.

#include <bit>
#include <cstdint>

#define GALLEY_INLINE inline __attribute__((always_inline))
// Before a loop whose outputs may be its inputs, element for element: the check for overlap would send updates in place to scalar code.
#define GALLEY_ELEMENTWISE _Pragma("GCC ivdep")

namespace galley {

// NaN passes through both.
GALLEY_INLINE float at_least(float x, float low) { return x < low ? low : x; }
GALLEY_INLINE float at_most(float x, float high) { return x > high ? high : x; }

namespace vector_functions {

GALLEY_INLINE float mul_add(float a, float b, float c) { return a * b + c; }  // which the compiler fuses
GALLEY_INLINE float nmul_add(float a, float b, float c) { return c - a * b; }
GALLEY_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
GALLEY_INLINE float abs_of(float x) { return __builtin_fabsf(x); }
/// Integers that wrap.
struct Bits {
  int32_t v;
};
GALLEY_INLINE Bits bits_of(float x) { return {std::bit_cast<int32_t>(x)}; }
GALLEY_INLINE float from_bits(Bits x) { return std::bit_cast<float>(x.v); }
GALLEY_INLINE float to_floats(Bits x) { return static_cast<float>(x.v); }
GALLEY_INLINE Bits operator+(Bits a, int32_t b) { return {static_cast<int32_t>(static_cast<uint32_t>(a.v) + static_cast<uint32_t>(b))}; }
GALLEY_INLINE Bits operator-(Bits a, int32_t b) { return {static_cast<int32_t>(static_cast<uint32_t>(a.v) - static_cast<uint32_t>(b))}; }
GALLEY_INLINE Bits operator-(Bits a, Bits b) { return a - b.v; }
template <int kBits>
GALLEY_INLINE Bits shift_left(Bits x) {
  return {static_cast<int32_t>(static_cast<uint32_t>(x.v) << kBits)};
}
template <int kBits>
GALLEY_INLINE Bits shift_right(Bits x) {
  return {x.v >> kBits};
}

#include "libcore/backends/cpu/vector_functions.h"

}  // namespace vector_functions

GALLEY_INLINE float exp_of(float x) { return vector_functions::exp_of(x); }
GALLEY_INLINE float expm1_of(float x) { return vector_functions::expm1_of(x); }
GALLEY_INLINE float log_of(float x) { return vector_functions::log_of(x); }
GALLEY_INLINE float log1p_of(float x) { return vector_functions::log1p_of(x); }
GALLEY_INLINE float sigmoid_of(float x) { return vector_functions::sigmoid_of(x); }
GALLEY_INLINE float tanh_of(float x) { return vector_functions::tanh_of(x); }
GALLEY_INLINE float normal_of(float x) { return vector_functions::normal_of(x); }
GALLEY_INLINE float erf_of(float x) { return vector_functions::erf_of(x); }
GALLEY_INLINE float hardsigmoid_of(float x) { return vector_functions::hardsigmoid_of(x); }

}  // namespace galley
