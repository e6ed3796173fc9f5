#pragma once
// What the kernels of collectives of several back ends read from a node.

#include <string>
#include <type_traits>

#include "libcore/backends/kernel.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/collective.h"

namespace galley {

/// The axis of the ranks of a collective with these attributes.
template <class Attrs>
RankAxis axis_of(const KernelQuery& q) {
  if constexpr (std::is_same_v<Attrs, BroadcastAttrs>)
    return RankAxis::kSamples;
  else
    return q.attrs<Attrs>().tensor ? RankAxis::kTensor : RankAxis::kSamples;
}

/// The rank's part of an array that ranks divide: its bytes, and the bytes of the parts before it.
struct OwnPart {
  /// `elements`: of the part.
  OwnPart(const KernelQuery& q, int64_t elements)
      : name(q.attrs<SegmentAttrs>().name),
        axis(axis_of<SegmentAttrs>(q)),
        dtype(q.in(0).dtype),
        count(elements * q.attrs<SegmentAttrs>().ranks),
        bytes(elements * dtype_size(dtype)),
        begin(bytes * q.attrs<SegmentAttrs>().rank),
        group{static_cast<int>(q.attrs<SegmentAttrs>().stride), static_cast<int>(q.attrs<SegmentAttrs>().ranks)} {}
  Collective call(CollectiveKind kind, const void* from, void* to) const {
    return {.kind = kind, .dtype = dtype, .name = name, .input = from, .output = to, .count = count, .group = group};
  }

  std::string name;
  RankAxis axis;
  DType dtype;
  int64_t count, bytes, begin;
  RankGroup group;
};

}  // namespace galley
