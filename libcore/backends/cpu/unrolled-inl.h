// Loops spelled out for the compiler, so that the vectors which they index are registers from the start: an array of sums that a plain loop
// clears and stores lies on the stack before and behind the loop that keeps it in registers, a quarter of the time where the depth is 16.
// Compiled anew for each instruction set (no include guard of the common kind).

#ifndef GALLEY_LOOP
#include <type_traits>
#include <utility>

/// Of a lambda in vector code: compiled for its instruction set, and in place.
#define GALLEY_LOOP HWY_ATTR __attribute__((always_inline))
#endif

#if defined(GALLEY_UNROLLED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_UNROLLED_INL
#undef GALLEY_UNROLLED_INL
#else
#define GALLEY_UNROLLED_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace galley {
namespace HWY_NAMESPACE {

template <int... kIndex, class Body>
HWY_INLINE void spell_out(std::integer_sequence<int, kIndex...>, const Body& body) {
  (body(std::integral_constant<int, kIndex>()), ...);
}
/// body(0), body(1), ... as constants.
template <int kCount, class Body>
HWY_INLINE void each(const Body& body) {
  spell_out(std::make_integer_sequence<int, kCount>(), body);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley
HWY_AFTER_NAMESPACE();

#endif
