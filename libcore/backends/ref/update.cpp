#include "libcore/ops/update.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void assign_ref(RefCall& call) { call.out().v = call.in(1).v; }

constexpr RefEntry kEntries[] = {{"assign", assign_ref}};

}  // namespace

std::span<const RefEntry> ref_update() { return kEntries; }

}  // namespace galley
