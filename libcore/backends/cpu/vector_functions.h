// Elementary functions of floats, written once for a float in a loop that the compiler vectorizes (vector_math.h) and for a vector of
// Highway (floats-inl.h): branch-free, no table. A file includes this text inside a namespace that declares before it, for its V:
// GALLEY_INLINE, arithmetic, comparisons, mul_add(a, b, c) = a b + c and nmul_add(a, b, c) = c - a b (fused where the instruction set has
// it), select, at_least, at_most, abs_of, and integers of the same width: bits_of, from_bits, to_floats, shift_right<N>, shift_left<N>, +
// and -. No include guard.
//
// Range reduction and minimax polynomials are those of Cephes (S. L. Moshier, "Methods and Programs for Mathematical Functions", 1989:
// expf, logf, tanhf, erff). The bounds given here are checked against double in tests/backends/cpu/vector_math_test.cpp.

/// What e^x is made of: x = n ln 2 + r, e^r = 1 + small.
template <class V>
struct ExpParts {
  V shifted;  // n + 1.5 * 2^23, which rounds to an integer and keeps it in the low bits
  V small;
};
template <class V>
GALLEY_INLINE ExpParts<V> exp_parts(V x) {
  const V shifted = mul_add(x, V(1.44269504088896341f), V(12582912.0f));
  const V n = shifted - V(12582912.0f);
  // ln 2 in two parts, the first exact times n.
  const V r = nmul_add(n, V(-2.12194440e-4f), nmul_add(n, V(0.693359375f), x));
  V p = V(1.9875691500e-4f);
  p = mul_add(p, r, V(1.3981999507e-3f));
  p = mul_add(p, r, V(8.3334519073e-3f));
  p = mul_add(p, r, V(4.1665795894e-2f));
  p = mul_add(p, r, V(1.6666665459e-1f));
  p = mul_add(p, r, V(5.0000001201e-1f));
  return {shifted, mul_add(p * r, r, r)};
}

/// e^x to 2 units in the last place of the result, subnormal results included; 0, inf and NaN as std::exp.
template <class V>
GALLEY_INLINE V exp_of(V x) {
  const ExpParts<V> parts = exp_parts(at_most(at_least(x, V(-104.0f)), V(88.8f)));  // beyond: 0 and inf
  const V p = parts.small + V(1.0f);
  // 2^n as two factors: n goes from -150 to 128.
  const auto exponent = bits_of(parts.shifted) - bits_of(V(12582912.0f)), half = shift_right<1>(exponent);
  return p * from_bits(shift_left<23>(half + 127)) * from_bits(shift_left<23>(exponent - half + 127));
}

/// e^x - 1 to 2 units in the last place, for x up to 88; NaN as std::expm1.
template <class V>
GALLEY_INLINE V expm1_of(V x) {
  const ExpParts<V> parts = exp_parts(at_least(x, V(-104.0f)));
  const auto exponent = bits_of(parts.shifted) - bits_of(V(12582912.0f)), half = shift_right<1>(exponent);
  const V scale = from_bits(shift_left<23>(half + 127)) * from_bits(shift_left<23>(exponent - half + 127));
  return mul_add(parts.small, scale, scale - V(1.0f));
}

/// ln x to 2 units in the last place (near 1: of x - 1), subnormal x included; NaN below 0, -inf of 0, inf and NaN as std::log.
template <class V>
GALLEY_INLINE V log_of(V x) {
  const auto subnormal = x < V(0x1p-126f);
  const V lift = select(subnormal, V(0x1p23f), V(1.0f)), lifted = select(subnormal, V(23.0f), V(0.0f));
  const auto bits = bits_of(x * lift);
  // x = m 2^e with m in sqrt(1/2) .. sqrt(2): 0x3f3504f3 are the bits of sqrt(1/2).
  const auto exponent = shift_right<23>(bits - 0x3f3504f3);
  const V m = from_bits(bits - shift_left<23>(exponent)) - V(1.0f);
  const V e = to_floats(exponent) - lifted;
  const V z = m * m;
  V p = V(7.0376836292e-2f);
  p = mul_add(p, m, V(-1.1514610310e-1f));
  p = mul_add(p, m, V(1.1676998740e-1f));
  p = mul_add(p, m, V(-1.2420140846e-1f));
  p = mul_add(p, m, V(1.4249322787e-1f));
  p = mul_add(p, m, V(-1.6668057665e-1f));
  p = mul_add(p, m, V(2.0000714765e-1f));
  p = mul_add(p, m, V(-2.4999993993e-1f));
  p = mul_add(p, m, V(3.3333331174e-1f));
  const V small = nmul_add(V(0.5f), z, mul_add(e, V(-2.12194440e-4f), p * m * z));
  const V value = mul_add(e, V(0.693359375f), m + small);
  const V of_nothing = select(x == V(0.0f), V(-__builtin_inff()), V(__builtin_nanf("")));
  const V finite = select(x < V(__builtin_inff()), value, x);  // inf, NaN
  return select(x > V(0.0f), finite, of_nothing);
}

/// ln(1 + x) to 4 units in the last place, for x in 0..1: what the sum 1 + x loses of x is added to first order.
template <class V>
GALLEY_INLINE V log1p_of(V x) {
  const V sum = V(1.0f) + x, lost = x - (sum - V(1.0f));
  return log_of(sum) + lost / sum;
}

/// 1 / (1 + e^-x).
template <class V>
GALLEY_INLINE V sigmoid_of(V x) {
  return V(1.0f) / (V(1.0f) + exp_of(-x));
}

/// tanh: a polynomial near 0, else by e^2x.
template <class V>
GALLEY_INLINE V tanh_of(V x) {
  const V z = x * x;
  V p = V(-5.70498872745e-3f);
  p = mul_add(p, z, V(2.06390887954e-2f));
  p = mul_add(p, z, V(-5.37397155531e-2f));
  p = mul_add(p, z, V(1.33314422036e-1f));
  p = mul_add(p, z, V(-3.33332819422e-1f));
  const V near = mul_add(p * z, x, x);
  const V far = V(1.0f) - V(2.0f) / (exp_of(V(2.0f) * x) + V(1.0f));
  return select(z < V(0.390625f), near, far);
}

/// e^(-z z) t times the polynomial of Abramowitz, Stegun, "Handbook of Mathematical Functions", 7.1.26: 1 - erf(z) to 1.5e-7 for z >= 0.
template <class V>
GALLEY_INLINE V erfc_of(V z, V factor) {
  const V t = V(1.0f) / mul_add(V(0.3275911f), z, V(1.0f));
  V p = V(1.061405429f);
  p = mul_add(p, t, V(-1.453152027f));
  p = mul_add(p, t, V(1.421413741f));
  p = mul_add(p, t, V(-0.284496736f));
  p = mul_add(p, t, V(0.254829592f));
  return factor * p * t * exp_of(-z * z);
}

/// The normal distribution function, (1 + erf(x / sqrt 2)) / 2, to 2e-7.
template <class V>
GALLEY_INLINE V normal_of(V x) {
  const V tail = erfc_of(abs_of(x) * V(0.70710678f), V(0.5f));
  return select(x < V(0.0f), tail, V(1.0f) - tail);
}

/// The error function to 3 units in the last place, 4 without fused multiply-add: a polynomial up to 1, else by its complement.
template <class V>
GALLEY_INLINE V erf_of(V x) {
  const V size = abs_of(x), z = x * x;
  V p = V(7.853861353153693e-5f);
  p = mul_add(p, z, V(-8.010193625184903e-4f));
  p = mul_add(p, z, V(5.188327685732524e-3f));
  p = mul_add(p, z, V(-2.685381193529856e-2f));
  p = mul_add(p, z, V(1.128358514861418e-1f));
  p = mul_add(p, z, V(-3.761262582423300e-1f));
  p = mul_add(p, z, V(1.128379165726710f));
  const V far = V(1.0f) - erfc_of(size, V(1.0f));
  return select(size < V(1.0f), x * p, select(x < V(0.0f), -far, far));
}

/// relu6(x + 3) / 6.
template <class V>
GALLEY_INLINE V hardsigmoid_of(V x) {
  return at_most(at_least(x + V(3.0f), V(0.0f)), V(6.0f)) * V(1.0f / 6.0f);
}
