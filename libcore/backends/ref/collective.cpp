// The references of collectives: what one rank computes alone.
#include "libcore/ops/collective.h"

#include <algorithm>

#include "libcore/backends/ref/table.h"

namespace galley {
namespace {

void same_ref(RefCall& call) { call.out().v = call.in(0).v; }

/// The rank's part of its own array.
void own_part_ref(RefCall& call) {
  RefArray& y = call.out();
  const auto& from = call.in(0).v;
  std::copy_n(from.begin() + call.attrs<SegmentAttrs>().rank * y.shape[0], y.shape[0], y.v.begin());
}

/// The rank's part among zeros.
void among_zeros_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  std::copy(x.v.begin(), x.v.end(), call.out().v.begin() + call.attrs<SegmentAttrs>().rank * x.shape[0]);
}

constexpr RefEntry kEntries[] = {
    {"all_reduce_start", same_ref},        {"all_reduce_wait", same_ref},         {"reduce_scatter_start", same_ref},
    {"reduce_scatter_wait", own_part_ref}, {"all_gather_start", among_zeros_ref}, {"all_gather_wait", same_ref},
    {"broadcast_start", same_ref},         {"broadcast_wait", same_ref},          {"sum_gradient", same_ref}};

}  // namespace

std::span<const RefEntry> ref_collective() { return kEntries; }

}  // namespace galley
