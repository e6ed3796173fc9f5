// Unrolled loops, so that the arrays of vectors that they index are registers throughout: GCC 12 keeps an array of sums that a plain loop
// clears and stores on the stack before and after the loop that holds it in registers, a quarter of the time where the depth is 16.
// Compiled for each instruction set (hence the unusual include guard).

#ifndef GALLEY_LOOP
#include <type_traits>
#include <utility>

/// Attribute of a lambda in vector code: compiled for its instruction set, and inlined.
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
