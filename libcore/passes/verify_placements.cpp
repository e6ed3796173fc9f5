#include "libcore/passes/verify_placements.h"

#include <algorithm>

#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// The axes along which the ranks of a collective differ. `ranks` 0: all that read different samples.
std::vector<PlacementAxis> axes_of(bool tensor, int64_t ranks, int64_t stride) {
  if (tensor) return {PlacementAxis::kTensor};
  if (ranks == 0) return {PlacementAxis::kData, PlacementAxis::kShard};
  return {stride > 1 ? PlacementAxis::kData : PlacementAxis::kShard};
}
template <class Attrs>
std::vector<PlacementAxis> axes_of(const Node& node) {
  const auto& attrs = node.attrs<Attrs>();
  return axes_of(attrs.tensor, attrs.ranks, attrs.stride);
}

/// Whether each element of a range gives the element at its place in the result, or elements are moved.
bool keeps_ranges(const Graph& graph, const Node& node) {
  return is_view(graph, node) || node.op->work == WorkClass::kState || find_elementwise(node.op->name) != nullptr ||
         node.op == &cast_op() || node.op == &concat_op() || node.op == &slice_op() || node.op == &pad_op();
}

Placement joined(const Graph& graph, const Node& node, const std::vector<Placement>& placements) {
  Placement result;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    if (id == kNoValue || static_cast<int>(i) == node.op->gate) continue;
    const Placement& input = placements[static_cast<size_t>(id)];
    for (size_t axis = 0; axis < result.held.size(); ++axis) result.held[axis] = std::max(result.held[axis], input.held[axis]);
  }
  if (keeps_ranges(graph, node)) return result;
  for (Held& held : result.held) held = held == Held::kRange ? Held::kOwn : held;
  return result;
}

Placement placement_of(const Graph& graph, const Node& node, const std::vector<Placement>& placements) {
  const auto with = [&](const std::vector<PlacementAxis>& axes, Held held) {
    Placement result = placements[static_cast<size_t>(node.inputs[0])];
    for (const PlacementAxis axis : axes) result[axis] = held;
    return result;
  };
  // What a start gives is its input until the wait.
  if (starts_collective(node)) return placements[static_cast<size_t>(node.inputs[0])];
  if (node.op == &all_reduce_wait_op()) return with(axes_of<CollectiveAttrs>(node), Held::kReplicated);
  if (node.op == &all_gather_wait_op()) return with(axes_of<SegmentAttrs>(node), Held::kReplicated);
  if (node.op == &reduce_scatter_wait_op()) return with(axes_of<SegmentAttrs>(node), Held::kRange);
  if (node.op == &broadcast_wait_op()) return with(axes_of(false, 0, 1), Held::kReplicated);
  return joined(graph, node, placements);
}

std::string along(const Placement& placement, size_t axis) {
  return cat(kHeldNames[static_cast<size_t>(placement.held[axis])], " along the axis ", kPlacementAxes[axis]);
}

}  // namespace

std::string Placement::str() const {
  std::string text;
  for (size_t axis = 0; axis < held.size(); ++axis) {
    if (held[axis] == Held::kReplicated) continue;
    text += cat(text.empty() ? "" : ",", kPlacementAxes[axis], "=", kHeldNames[static_cast<size_t>(held[axis])]);
  }
  return text;
}

std::vector<Placement> placements_of(const Graph& graph, const InputPlacement& input) {
  std::vector<Placement> placements(graph.value_count());
  for (const ValueId id : graph.inputs()) placements[static_cast<size_t>(id)] = input(graph.value(id));
  for (const Node& node : graph.nodes()) {
    const Placement placement = placement_of(graph, node, placements);
    for (const ValueId id : node.outputs) placements[static_cast<size_t>(id)] = placement;
  }
  return placements;
}

void verify_placements(const Graph& graph, const InputPlacement& input, bool outputs) {
  const std::vector<Placement> placements = placements_of(graph, input);
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId state = node.input(static_cast<size_t>(update.input));
      if (state == kNoValue || graph.value(state).role == ValueRole::kActivation) continue;
      const Placement &kept = placements[static_cast<size_t>(state)],
                      &given = placements[static_cast<size_t>(node.outputs[static_cast<size_t>(update.output)])];
      for (size_t axis = 0; axis < kPlacementAxes.size(); ++axis) {
        GALLEY_ASSERT(given.held[axis] <= kept.held[axis], node.op->name, node.path.empty() ? "" : " at ", node.path, " updates ",
                      graph.value(state).name, ", which is ", along(kept, axis), ", by values that are ", along(given, axis));
      }
    }
  }
  for (const auto& [name, id] : graph.outputs()) {
    const Placement& placement = placements[static_cast<size_t>(id)];
    GALLEY_ASSERT(!outputs || placement == Placement(), "the output ", name, " is not equal on all ranks: ", placement.str());
  }
}

}  // namespace galley
