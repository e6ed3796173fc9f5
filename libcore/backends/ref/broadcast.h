#pragma once
// Broadcasting in references.

#include "libcore/backends/ref/ref.h"

namespace galley {

/// Logical indices of the elements of `small` that the elements of `large` read under broadcasting, one after the other.
class BroadcastIndices {
 public:
  BroadcastIndices(const Shape& large, const Shape& small) : same_(large == small), large_(large), position_(large), step_(large) {
    int64_t step = 1;
    for (int back = 1; back <= large.rank(); ++back) {
      position_[-back] = 0;
      const bool moves = back <= small.rank() && small[-back] != 1;
      step_[-back] = moves ? step : 0;
      if (back <= small.rank()) step *= small[-back];
    }
  }
  int64_t index() const { return index_; }
  void next() {
    if (same_) {
      ++index_;
      return;
    }
    for (int d = large_.rank() - 1; d >= 0; --d) {
      index_ += step_[d];
      if (++position_[d] < large_[d]) return;
      index_ -= step_[d] * large_[d];
      position_[d] = 0;
    }
  }

 private:
  bool same_;
  Shape large_, position_, step_;
  int64_t index_ = 0;
};

}  // namespace galley
