#include "libcore/backends/ref/broadcast.h"

#include "libcore/ops/binary.h"

namespace galley {
namespace {

void broadcast_to_ref(RefCall& call) {
  RefArray& y = call.out();
  BroadcastIndices walk(y.shape, call.in(0).shape);
  for (double& value : y.v) {
    value = call.in(0)[walk.index()];
    walk.next();
  }
}

constexpr RefEntry kEntries[] = {{"broadcast_to", broadcast_to_ref}};

}  // namespace

std::span<const RefEntry> ref_broadcast() { return kEntries; }

}  // namespace galley
