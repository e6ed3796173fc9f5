// A vector of floats with operators and elementary functions, compiled for each instruction set (no include guard of the common kind): what
// vector_functions.h and ops/elementwise_functions.h are written for. In namespace galley::elementwise::HWY_NAMESPACE.

#include <cmath>
#include <cstdint>

#if defined(GALLEY_FLOATS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_FLOATS_INL
#undef GALLEY_FLOATS_INL
#else
#define GALLEY_FLOATS_INL
#endif

#include <hwy/highway.h>

#ifndef GALLEY_INLINE
#define GALLEY_INLINE inline __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace galley::elementwise {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

struct Floats {
  Floats() = default;
  GALLEY_INLINE Floats(hn::Vec<D> x) : v(x) {}
  GALLEY_INLINE explicit Floats(double x) : v(hn::Set(D(), static_cast<float>(x))) {}
  GALLEY_INLINE explicit Floats(float x) : v(hn::Set(D(), x)) {}
  GALLEY_INLINE explicit Floats(int x) : v(hn::Set(D(), static_cast<float>(x))) {}
  hn::Vec<D> v;
};
struct Mask {
  hn::Mask<D> m;
};
struct Ints {
  hn::Vec<DI> v;
};

GALLEY_INLINE Floats operator+(Floats a, Floats b) { return hn::Add(a.v, b.v); }
GALLEY_INLINE Floats operator-(Floats a, Floats b) { return hn::Sub(a.v, b.v); }
GALLEY_INLINE Floats operator*(Floats a, Floats b) { return hn::Mul(a.v, b.v); }
GALLEY_INLINE Floats operator/(Floats a, Floats b) { return hn::Div(a.v, b.v); }
GALLEY_INLINE Floats operator-(Floats a) { return hn::Neg(a.v); }
GALLEY_INLINE Mask operator<(Floats a, Floats b) { return {hn::Lt(a.v, b.v)}; }
GALLEY_INLINE Mask operator<=(Floats a, Floats b) { return {hn::Le(a.v, b.v)}; }
GALLEY_INLINE Mask operator>(Floats a, Floats b) { return {hn::Lt(b.v, a.v)}; }
GALLEY_INLINE Mask operator>=(Floats a, Floats b) { return {hn::Le(b.v, a.v)}; }
GALLEY_INLINE Mask operator==(Floats a, Floats b) { return {hn::Eq(a.v, b.v)}; }
GALLEY_INLINE Mask operator!=(Floats a, Floats b) { return {hn::Ne(a.v, b.v)}; }
GALLEY_INLINE Mask operator&(Mask a, Mask b) { return {hn::And(a.m, b.m)}; }

GALLEY_INLINE Mask is_nan(Floats x) { return {hn::IsNaN(x.v)}; }
GALLEY_INLINE Floats select(Mask mask, Floats a, Floats b) { return hn::IfThenElse(mask.m, a.v, b.v); }
GALLEY_INLINE Floats keep(Mask mask, Floats x) { return hn::IfThenElseZero(mask.m, x.v); }
// NaN passes through both: x86's instructions return their second operand if one operand is NaN. Highway's scalar code does not.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
GALLEY_INLINE Floats at_least(Floats x, Floats low) { return hn::Max(low.v, x.v); }
GALLEY_INLINE Floats at_most(Floats x, Floats high) { return hn::Min(high.v, x.v); }
#else
GALLEY_INLINE Floats at_least(Floats x, Floats low) { return select(x < low, low, x); }
GALLEY_INLINE Floats at_most(Floats x, Floats high) { return select(x > high, high, x); }
#endif
GALLEY_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return hn::MulAdd(a.v, b.v, c.v); }
GALLEY_INLINE Floats nmul_add(Floats a, Floats b, Floats c) { return hn::NegMulAdd(a.v, b.v, c.v); }
GALLEY_INLINE Floats abs_of(Floats x) { return hn::Abs(x.v); }

GALLEY_INLINE Ints bits_of(Floats x) { return {hn::BitCast(DI(), x.v)}; }
GALLEY_INLINE Floats from_bits(Ints x) { return hn::BitCast(D(), x.v); }
GALLEY_INLINE Floats to_floats(Ints x) { return hn::ConvertTo(D(), x.v); }
GALLEY_INLINE Ints operator-(Ints a, Ints b) { return {hn::Sub(a.v, b.v)}; }
GALLEY_INLINE Ints operator+(Ints a, int32_t b) { return {hn::Add(a.v, hn::Set(DI(), b))}; }
GALLEY_INLINE Ints operator-(Ints a, int32_t b) { return {hn::Sub(a.v, hn::Set(DI(), b))}; }
template <int kBits>
GALLEY_INLINE Ints shift_left(Ints x) {
  return {hn::ShiftLeft<kBits>(x.v)};
}
template <int kBits>
GALLEY_INLINE Ints shift_right(Ints x) {
  return {hn::ShiftRight<kBits>(x.v)};
}

namespace vector_functions {
#include "libcore/backends/cpu/vector_functions.h"
}  // namespace vector_functions

// Under the names that ops/elementwise_functions.h asks for.
GALLEY_INLINE Floats over(Floats x, double n) { return x * Floats(1.0 / n); }
GALLEY_INLINE Floats abs(Floats x) { return abs_of(x); }
GALLEY_INLINE Floats sqrt(Floats x) { return hn::Sqrt(x.v); }
GALLEY_INLINE Floats exp(Floats x) { return vector_functions::exp_of(x); }
GALLEY_INLINE Floats expm1(Floats x) { return vector_functions::expm1_of(x); }
GALLEY_INLINE Floats log(Floats x) { return vector_functions::log_of(x); }
GALLEY_INLINE Floats log1p(Floats x) { return vector_functions::log1p_of(x); }
GALLEY_INLINE Floats tanh(Floats x) { return vector_functions::tanh_of(x); }
GALLEY_INLINE Floats erf(Floats x) { return vector_functions::erf_of(x); }
GALLEY_INLINE Floats normal(Floats x) { return vector_functions::normal_of(x); }
GALLEY_INLINE Floats floor(Floats x) { return hn::Floor(x.v); }
GALLEY_INLINE Floats round(Floats x) { return hn::Round(x.v); }  // half to even

// Calls of the library, a lane at a time: rare, and exact for large arguments and in all special cases.
template <class F>
GALLEY_INLINE Floats by_lane(Floats x, F function) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(x.v, D(), lanes);
  for (float& lane : lanes) lane = function(lane);
  return hn::Load(D(), lanes);
}
GALLEY_INLINE Floats sin(Floats x) { return by_lane(x, static_cast<float (*)(float)>(std::sin)); }
GALLEY_INLINE Floats cos(Floats x) { return by_lane(x, static_cast<float (*)(float)>(std::cos)); }
GALLEY_INLINE Floats pow(Floats x, Floats exponent) {
  HWY_ALIGN float lanes[kLanes], exponents[kLanes];
  hn::Store(x.v, D(), lanes);
  hn::Store(exponent.v, D(), exponents);
  for (int i = 0; i < kLanes; ++i) lanes[i] = std::pow(lanes[i], exponents[i]);
  return hn::Load(D(), lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::elementwise
HWY_AFTER_NAMESPACE();

#endif  // toggle
