#include "libcore/passes/hoist_prepare.h"

#include <set>

namespace galley {
namespace {

/// Larger constants are computed in each run instead of being stored.
constexpr int64_t kLargestKeptConstant = 1 << 20;

}  // namespace

size_t hoist_prepare(Graph& graph) {
  std::set<ValueId> changed;  // named inputs that the graph updates
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      if (node.input(static_cast<size_t>(update.input)) != kNoValue) changed.insert(node.inputs[static_cast<size_t>(update.input)]);
    }
  }
  std::vector<bool> fixed(graph.value_count());
  for (ValueId id : graph.inputs()) {
    const ValueRole role = graph.value(id).role;
    fixed[static_cast<size_t>(id)] = (role == ValueRole::kParameter || role == ValueRole::kBuffer) && changed.count(id) == 0;
  }
  std::deque<Node> front, rest;
  for (const Node& node : graph.nodes()) {
    bool early = node.op->updates.empty() && !node.op->has_effect;
    for (ValueId id : node.inputs) early &= id == kNoValue || fixed[static_cast<size_t>(id)];
    if (node.inputs.empty()) {
      for (ValueId id : node.outputs) early &= graph.type(id).bytes() <= kLargestKeptConstant;
    }
    for (ValueId id : node.outputs) fixed[static_cast<size_t>(id)] = early;
    (early ? front : rest).push_back(node);
  }
  const size_t count = front.size();
  front.insert(front.end(), rest.begin(), rest.end());
  graph.set_nodes(std::move(front));
  return count;
}

}  // namespace galley
