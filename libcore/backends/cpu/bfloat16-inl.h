// Vectors of float from arrays of f32 and bf16 and to those of bf16, compiled again for each instruction set (no include guard of the
// common kind).

#include "libcore/backends/cpu/bfloat16.h"

#if defined(GALLEY_BFLOAT16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_BFLOAT16_INL
#undef GALLEY_BFLOAT16_INL
#else
#define GALLEY_BFLOAT16_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace galley {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const BFloat16* from) {
  const hn::RebindToUnsigned<D> whole;
  const hn::Rebind<uint16_t, D> half;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(whole, hn::LoadU(half, &from->bits))));
}

/// Rounds to nearest even and stores; NaN stays NaN.
template <class D>
HWY_INLINE void store_floats(hn::Vec<D> v, D, BFloat16* to) {
  const hn::RebindToUnsigned<D> whole;
  const hn::RebindToSigned<D> number;
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::BitCast(whole, v), upper = hn::ShiftRight<16>(bits);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(whole, 0x7fffu), hn::And(upper, hn::Set(whole, 1)))));
  const auto is_nan = hn::RebindMask(whole, hn::IsNaN(v));  // Ne(v, v) is ordered on AVX-512
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(number, hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(whole, 0x40u)), rounded))), half,
             &to->bits);
}
template <class D>
HWY_INLINE void store_floats(hn::Vec<D> v, D d, float* to) {
  hn::StoreU(v, d, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley
HWY_AFTER_NAMESPACE();

#endif  // toggle
