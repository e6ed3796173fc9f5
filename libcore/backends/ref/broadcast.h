#pragma once
// Broadcasting in references.

#include "libcore/backends/ref/ref.h"

namespace galley {

/// Logical index of the element of `small` that element `i` of `large` reads under broadcasting.
inline int64_t broadcast_index(int64_t i, const Shape& large, const Shape& small) {
  int64_t index = 0, step = 1;
  for (int back = 1; back <= large.rank(); ++back) {
    const int64_t position = i % large[-back];
    i /= large[-back];
    if (back > small.rank()) continue;
    if (small[-back] != 1) index += position * step;
    step *= small[-back];
  }
  return index;
}

}  // namespace galley
