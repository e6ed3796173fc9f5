#include "libcore/passes/order_updates.h"

#include <algorithm>

namespace galley {
namespace {

/// For each value, the value whose memory it uses (itself, or the value that it is a view of).
std::vector<ValueId> memory_of(const Graph& graph) {
  std::vector<ValueId> base(graph.value_count());
  for (size_t v = 0; v < base.size(); ++v) base[v] = static_cast<ValueId>(v);
  for (const Node& node : graph.nodes()) {
    if (is_view(graph, node)) base[static_cast<size_t>(node.outputs[0])] = base[static_cast<size_t>(node.inputs[0])];
  }
  return base;
}

}  // namespace

int order_updates(Graph& graph) {
  const std::deque<Node>& nodes = graph.nodes();
  const std::vector<ValueId> base = memory_of(graph);
  int last_forward = -1;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].phase == Phase::kForward) last_forward = static_cast<int>(n);
  }
  // slot[n]: the node follows the slot-th node of the other phases. Updates keep their order within a slot. This respects dependencies
  // between updates, because the slot of a later update is never smaller.
  std::vector<int> made_at(graph.value_count(), -1);
  std::vector<int> last_read(graph.value_count(), -1);  // by memory; only reads by nodes that are not moved
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].phase == Phase::kUpdate) continue;
    for (ValueId id : nodes[n].inputs) {
      if (id != kNoValue) last_read[static_cast<size_t>(base[static_cast<size_t>(id)])] = static_cast<int>(n);
    }
  }
  std::vector<std::pair<int, size_t>> updates;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    int slot = static_cast<int>(n);
    if (node.phase == Phase::kUpdate) {
      slot = last_forward;
      for (ValueId id : node.inputs) {
        if (id != kNoValue) slot = std::max(slot, made_at[static_cast<size_t>(id)]);
      }
      for (const InPlace& update : node.op->updates) {
        const ValueId old = node.input(static_cast<size_t>(update.input));
        if (old == kNoValue) continue;
        const ValueId memory = base[static_cast<size_t>(old)];
        slot = std::max(slot, last_read[static_cast<size_t>(memory)]);
      }
      updates.emplace_back(slot, n);
      // A later update of memory that this node reads must stay after it.
      for (ValueId id : node.inputs) {
        if (id != kNoValue) {
          int& read = last_read[static_cast<size_t>(base[static_cast<size_t>(id)])];
          read = std::max(read, slot);
        }
      }
    }
    for (ValueId id : node.outputs) made_at[static_cast<size_t>(id)] = slot;
  }
  std::stable_sort(updates.begin(), updates.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::deque<Node> ordered;
  int moved = 0;
  size_t next = 0;
  const auto place_until = [&](int slot) {
    for (; next < updates.size() && updates[next].first <= slot; ++next) {
      moved += ordered.size() != updates[next].second;
      ordered.push_back(nodes[updates[next].second]);
    }
  };
  place_until(-1);
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].phase != Phase::kUpdate) ordered.push_back(nodes[n]);
    place_until(static_cast<int>(n));
  }
  graph.set_nodes(std::move(ordered));
  return moved;
}

}  // namespace galley
