#pragma once
// Elementary functions of float that the compiler vectorises: branch-free, no table, always inlined, so that a plain loop in a function
// marked GALLEY_CLONES becomes vector code of each instruction set. Range reduction and minimax polynomials are those of Cephes (S. L.
// Moshier, "Methods and Programs for Mathematical Functions", 1989: expf, logf). Bounds below are checked against double in
// tests/backends/cpu/vector_math_test.cpp.

#include <bit>
#include <cstdint>

// One copy of a function for each level of the instruction set (the levels of the x86-64 psABI), chosen as the program starts.
#define GALLEY_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define GALLEY_INLINE inline __attribute__((always_inline))
// Before a loop whose outputs may be its inputs, element for element: the check for overlap would send updates in place to scalar code.
#define GALLEY_ELEMENTWISE _Pragma("GCC ivdep")

namespace galley {

// NaN passes through both.
GALLEY_INLINE float at_least(float x, float low) { return x < low ? low : x; }
GALLEY_INLINE float at_most(float x, float high) { return x > high ? high : x; }

/// e^x to 2 units in the last place of the result, subnormal results included; 0, inf and NaN as std::exp.
GALLEY_INLINE float exp_of(float x) {
  const float limited = at_most(at_least(x, -104.0f), 88.8f);  // beyond: 0 and inf
  // x = n ln 2 + r: 1.5 * 2^23 rounds to an integer and keeps it in the low bits; ln 2 in two parts, the first exact times n.
  const float shifted = limited * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = limited - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n as two factors: n goes from -150 to 128.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(12582912.0f), half = exponent >> 1;
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((exponent - half + 127) << 23);
}

/// ln x to 2 units in the last place (near 1: of x - 1), subnormal x included; NaN below 0, -inf of 0, inf and NaN as std::log.
GALLEY_INLINE float log_of(float x) {
  const bool subnormal = x < 0x1p-126f;
  const float lift = subnormal ? 0x1p23f : 1.0f, lifted = subnormal ? 23.0f : 0.0f;
  const int32_t bits = std::bit_cast<int32_t>(x * lift);
  // x = m 2^e with m in sqrt(1/2) .. sqrt(2): 0x3f3504f3 are the bits of sqrt(1/2).
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = std::bit_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23))) - 1.0f;
  const float e = static_cast<float>(exponent) - lifted;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float small = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  const float value = m + small + e * 0.693359375f;
  const float of_nothing = x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
  const float finite = x < __builtin_inff() ? value : x;  // inf, NaN
  return x > 0.0f ? finite : of_nothing;
}

/// ln(1 + x) to 4 units in the last place, for x in 0..1: what the sum 1 + x loses of x is added to first order.
GALLEY_INLINE float log1p_of(float x) {
  const float sum = 1.0f + x, lost = x - (sum - 1.0f);
  return log_of(sum) + lost / sum;
}

/// 1 / (1 + e^-x).
GALLEY_INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

/// tanh: a polynomial near 0 (Cephes, tanhf), else by e^2x.
GALLEY_INLINE float tanh_of(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f);
  return z < 0.390625f ? near : far;
}

/// The normal distribution function, (1 + erf(x / sqrt 2)) / 2, to 2e-7: Abramowitz, Stegun, "Handbook of Mathematical Functions", 7.1.26.
GALLEY_INLINE float normal_of(float x) {
  const float z = __builtin_fabsf(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = 0.5f * p * t * exp_of(-z * z);
  return x < 0.0f ? tail : 1.0f - tail;
}

/// relu6(x + 3) / 6.
GALLEY_INLINE float hardsigmoid_of(float x) { return at_most(at_least(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f); }

}  // namespace galley
