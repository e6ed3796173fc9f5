#pragma once
// A contiguous array around one of its axes, for kernels that gather, join or cut along an axis.

#include <cstdint>

#include "libcore/base/shape.h"

namespace galley {

/// A contiguous array as [outer, size, inner], where `size` is the length of one axis.
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
  AxisView(const Shape& x, int axis) : size(x[axis]) {
    for (int d = 0; d < x.rank(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : x[d];
  }
  /// The index of an element in the array.
  int64_t at(int64_t o, int64_t s, int64_t i) const { return (o * size + s) * inner + i; }
};

}  // namespace galley
