#include "libcore/passes/order_updates.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace galley {
namespace {

/// Bytes of state that a node updates.
int64_t updated_bytes(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (const InPlace& update : node.op->updates) {
    const ValueId state = node.input(static_cast<size_t>(update.input));
    if (state != kNoValue) bytes += graph.type(state).bytes();
  }
  return bytes;
}

/// For each value, the first node of the other phases that reads it.
std::vector<int> first_readers(const Graph& graph) {
  std::vector<int> first(graph.value_count(), std::numeric_limits<int>::max());
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (node.phase == Phase::kUpdate) continue;
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) first[static_cast<size_t>(id)] = std::min(first[static_cast<size_t>(id)], static_cast<int>(n));
    }
  }
  return first;
}

/// The order of a group's nodes in which updates by the same operator follow one another: what does not update state runs as soon as it
/// can; where nothing else can, the updates by one operator that can.
class GroupOrder {
 public:
  /// `nodes`: places in the graph, in an order that respects dependencies. `base`: memory_of.
  GroupOrder(const Graph& graph, const std::vector<ValueId>& base, std::vector<size_t> nodes)
      : graph_(graph), nodes_(std::move(nodes)), waits_(nodes_.size()), followers_(nodes_.size()) {
    std::map<ValueId, size_t> makers;
    std::map<ValueId, std::vector<size_t>> users;  // by memory
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = at(i);
      for (const InPlace& update : node.op->updates) {
        const ValueId old = node.input(static_cast<size_t>(update.input));
        if (old == kNoValue) continue;
        for (const size_t user : users[base[static_cast<size_t>(old)]]) follow(user, i);
      }
      for (const ValueId id : node.inputs) {
        if (id == kNoValue) continue;
        if (const auto maker = makers.find(id); maker != makers.end()) follow(maker->second, i);
        users[base[static_cast<size_t>(id)]].push_back(i);
      }
      for (const ValueId id : node.outputs) makers[id] = i;
    }
  }
  std::vector<size_t> ordered() {
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (waits_[i] == 0) ready_.insert(i);
    while (!ready_.empty()) {
      const auto plain = std::find_if(ready_.begin(), ready_.end(), [&](size_t i) { return at(i).op->updates.empty(); });
      if (plain != ready_.end()) {
        take(*plain);
        continue;
      }
      const OpDef* op = at(*ready_.begin()).op;
      for (const size_t i : std::vector<size_t>(ready_.begin(), ready_.end()))
        if (at(i).op == op) take(i);
    }
    return ordered_;
  }

 private:
  const Node& at(size_t i) const { return graph_.nodes()[nodes_[i]]; }
  void follow(size_t first, size_t next) {
    followers_[first].push_back(next);
    ++waits_[next];
  }
  void take(size_t i) {
    ready_.erase(i);
    ordered_.push_back(nodes_[i]);
    for (const size_t next : followers_[i])
      if (--waits_[next] == 0) ready_.insert(next);
  }

  const Graph& graph_;
  std::vector<size_t> nodes_, ordered_;
  std::vector<int> waits_;
  std::vector<std::vector<size_t>> followers_;
  std::set<size_t> ready_;
};

/// Delays updates, in the order of their slots, until a group is complete or a node of another phase reads what one of them computes.
void collect(const Graph& graph, const std::vector<ValueId>& base, int64_t group_bytes, std::vector<std::pair<int, size_t>>& updates) {
  const std::vector<int> readers = first_readers(graph);
  int64_t waiting = 0;
  size_t begin = 0;
  int first_reader = std::numeric_limits<int>::max();
  const auto place = [&](size_t end) {
    std::vector<size_t> group;
    for (size_t i = begin; i < end; ++i) group.push_back(updates[i].second);
    for (const size_t node : GroupOrder(graph, base, std::move(group)).ordered()) updates[begin++] = {updates[end - 1].first, node};
    waiting = 0;
    first_reader = std::numeric_limits<int>::max();
  };
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].first >= first_reader) place(i);
    const Node& node = graph.nodes()[updates[i].second];
    waiting += updated_bytes(graph, node);
    for (const ValueId id : node.outputs) first_reader = std::min(first_reader, readers[static_cast<size_t>(id)]);
    if (waiting >= group_bytes) place(i + 1);
  }
  place(updates.size());
}

int order(Graph& graph, int64_t group_bytes) {
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
  if (group_bytes > 0) collect(graph, base, group_bytes, updates);
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

}  // namespace

std::vector<ValueId> memory_of(const Graph& graph) {
  std::vector<ValueId> base(graph.value_count());
  for (size_t v = 0; v < base.size(); ++v) base[v] = static_cast<ValueId>(v);
  for (const Node& node : graph.nodes()) {
    if (is_view(graph, node)) base[static_cast<size_t>(node.outputs[0])] = base[static_cast<size_t>(node.inputs[0])];
  }
  return base;
}

int order_updates(Graph& graph) { return order(graph, 0); }
int order_updates_in_groups(Graph& graph, int64_t group_bytes) {
  // Changes of format between updates are updates too.
  std::vector<bool> updated(graph.value_count());
  for (Node& node : graph.nodes()) {
    const bool reads =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id != kNoValue && updated[static_cast<size_t>(id)]; });
    if (reads && node.op->layout.formats == FormatRule::kReorder) node.phase = Phase::kUpdate;
    for (const ValueId id : node.outputs) updated[static_cast<size_t>(id)] = node.phase == Phase::kUpdate;
  }
  return order(graph, group_bytes);
}

}  // namespace galley
