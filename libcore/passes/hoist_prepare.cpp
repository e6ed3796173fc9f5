#include "libcore/passes/hoist_prepare.h"

#include <algorithm>
#include <set>

namespace galley {
namespace {

/// Larger constants are computed in each run instead of being stored.
constexpr int64_t kLargestKeptConstant = 1 << 20;

}  // namespace

bool unpacks_parameters(const Graph& graph, const Node& node) {
  if (node.inputs.empty() || !node.op->updates.empty() || node.op->has_effect) return false;
  bool integers = false;
  int64_t bytes = 0;
  for (const ValueId id : node.inputs) {
    if (id == kNoValue) continue;
    const ValueInfo& info = graph.value(id);
    if (info.role != ValueRole::kParameter && info.role != ValueRole::kBuffer) return false;
    integers = integers || !is_floating(info.type.dtype);
    bytes += info.type.bytes();
  }
  return integers && is_floating(graph.type(node.outputs[0]).dtype) && graph.type(node.outputs[0]).bytes() > bytes;
}

std::vector<bool> computed_once(const Graph& graph) {
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
  const bool training =
      std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return node.phase == Phase::kBackward; });
  for (const Node& node : graph.nodes()) {
    bool early = node.op->updates.empty() && !node.op->has_effect && !(training && unpacks_parameters(graph, node));
    for (ValueId id : node.inputs) early &= id == kNoValue || fixed[static_cast<size_t>(id)];
    if (node.inputs.empty()) {
      for (ValueId id : node.outputs) early &= graph.type(id).bytes() <= kLargestKeptConstant;
    }
    for (ValueId id : node.outputs) fixed[static_cast<size_t>(id)] = early;
  }
  return fixed;
}

size_t hoist_prepare(Graph& graph) {
  const std::vector<bool> fixed = computed_once(graph);
  std::deque<Node> front, rest;
  for (const Node& node : graph.nodes()) {
    const bool early = !node.outputs.empty() && fixed[static_cast<size_t>(node.outputs[0])];
    (early ? front : rest).push_back(node);
  }
  const size_t count = front.size();
  front.insert(front.end(), rest.begin(), rest.end());
  graph.set_nodes(std::move(front));
  return count;
}

}  // namespace galley
