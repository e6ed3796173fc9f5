// Sums over rows of channels in blocks of four rows, compiled for each instruction set (hence the unusual include guard).

#include "libcore/backends/cpu/unrolled-inl.h"

#if defined(GALLEY_BATCH_NORM_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_BATCH_NORM_ROWS_INL
#undef GALLEY_BATCH_NORM_ROWS_INL
#else
#define GALLEY_BATCH_NORM_ROWS_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace galley::batchnorm {
namespace HWY_NAMESPACE {

/// add(first row, how many): four rows at a time, so that the sums are loaded and stored once for four. `add` is marked GALLEY_LOOP.
template <class Add>
HWY_INLINE void by_four_rows(int64_t rows, const Add& add) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) add(r, std::integral_constant<int, 4>());
  for (; r < rows; ++r) add(r, std::integral_constant<int, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::batchnorm
HWY_AFTER_NAMESPACE();

#endif  // toggle
