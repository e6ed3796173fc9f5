#include "libcore/graph/placement.h"

#include <algorithm>

#include "libcore/graph/op_def.h"

namespace galley {

std::string Placement::str() const {
  std::string text;
  for (size_t axis = 0; axis < held.size(); ++axis) {
    if (held[axis] == Held::kReplicated) continue;
    text += cat(text.empty() ? "" : ",", kPlacementAxes[axis], "=", kHeldNames[static_cast<size_t>(held[axis])]);
  }
  return text;
}

Placement weaker(Placement a, const Placement& b) {
  for (size_t axis = 0; axis < a.held.size(); ++axis) a.held[axis] = std::max(a.held[axis], b.held[axis]);
  return a;
}

Placement keeps_ranges(const OpDef& op, const OpContext& context) {
  Placement result;
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (context.inputs[i] != nullptr && static_cast<int>(i) != op.gate) result = weaker(result, context.inputs[i]->placement);
  }
  return result;
}

Placement placement_of(const OpDef& op, const OpContext& context) {
  if (op.place != nullptr) return op.place(op, context);
  Placement result = keeps_ranges(op, context);
  if (op.view() || op.work == WorkClass::kState) return result;
  for (Held& held : result.held) held = held == Held::kRange ? Held::kOwn : held;
  return result;
}

}  // namespace galley
