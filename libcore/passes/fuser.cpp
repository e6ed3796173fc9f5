#include "libcore/passes/fuser.h"

#include <algorithm>

#include "libcore/passes/order_updates.h"

namespace galley {
namespace {

/// Does `node` update state that `earlier` reads? `base`: memory_of.
bool updates_what_reads(const Node& node, const Node& earlier, const std::vector<ValueId>& base) {
  return std::any_of(node.op->updates.begin(), node.op->updates.end(), [&](const InPlace& update) {
    const ValueId old = node.input(static_cast<size_t>(update.input));
    return old != kNoValue && std::any_of(earlier.inputs.begin(), earlier.inputs.end(), [&](ValueId id) {
             return id != kNoValue && base[static_cast<size_t>(id)] == base[static_cast<size_t>(old)];
           });
  });
}

}  // namespace

Fuser::Fuser(Graph& graph)
    : graph_(graph), nodes_(graph.nodes()), producers_(graph.producers()), users_(graph.users()), gone_(nodes_.size()) {
  for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
}

std::string Fuser::reason_against(ValueId id) const {
  if (is_output(id)) return "the value in between is an output of the graph";
  const size_t readers = users(id).size();
  return readers == 1 ? "" : cat("the value in between has ", readers, " readers");
}

ValueId Fuser::new_value(TensorType type) {
  producers_.push_back(-1);
  users_.emplace_back();
  return graph_.new_value(std::move(type));
}

void Fuser::merge(size_t reader, size_t inner, Node merged, std::string what) {
  merged.outputs[0] = nodes_[reader].outputs[0];
  absorb(reader, inner);
  for (ValueId id : merged.outputs) producers_[static_cast<size_t>(id)] = static_cast<int>(reader);
  report.done.push_back(cat(merged.path, ": ", what));
  nodes_[reader] = std::move(merged);
}

void Fuser::merge_into(size_t inner, size_t reader, Node merged, std::string what) {
  merged.outputs[0] = nodes_[reader].outputs[0];
  absorb(inner, reader);
  producers_[static_cast<size_t>(merged.outputs[0])] = static_cast<int>(inner);
  report.done.push_back(cat(merged.path, ": ", what));
  nodes_[inner] = std::move(merged);
}

void Fuser::absorb(size_t reader, size_t inner) {
  for (ValueId id : nodes_[inner].inputs) rename_user(id, inner, reader);
  gone_[inner] = true;
}

void Fuser::rename_user(ValueId id, size_t from, size_t to) {
  if (id == kNoValue) return;
  for (int& user : users_[static_cast<size_t>(id)]) {
    if (user == static_cast<int>(from)) user = static_cast<int>(to);
  }
}

void Fuser::finish() {
  const std::vector<ValueId> base = memory_of(graph_);
  std::deque<Node> kept, waiting;
  std::vector<bool> made(graph_.value_count());
  for (ValueId id : graph_.inputs()) made[static_cast<size_t>(id)] = true;
  // `end`: of the waiting nodes that were before `node`.
  const auto ready = [&](const Node& node, std::deque<Node>::const_iterator end) {
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return id == kNoValue || made[static_cast<size_t>(id)]; }) &&
           std::none_of(waiting.cbegin(), end, [&](const Node& earlier) { return updates_what_reads(node, earlier, base); });
  };
  const auto take = [&](Node node) {
    for (ValueId id : node.outputs) made[static_cast<size_t>(id)] = true;
    kept.push_back(std::move(node));
  };
  for (size_t n = 0; n < nodes_.size(); ++n) {
    if (gone_[n]) continue;
    if (!ready(nodes_[n], waiting.cend())) {
      waiting.push_back(nodes_[n]);
      continue;
    }
    take(nodes_[n]);
    for (bool moved = true; moved;) {
      moved = false;
      for (auto node = waiting.begin(); node != waiting.end(); ++node) {
        if (!ready(*node, node)) continue;
        take(std::move(*node));
        waiting.erase(node);
        moved = true;
        break;
      }
    }
  }
  GALLEY_ASSERT(waiting.empty(), "fusion created a cycle");
  graph_.set_nodes(std::move(kept));
}

bool adds_alike(const Graph& graph, const Node& node) {
  const Shape& sum = graph.type(node.outputs[0]).shape;
  return graph.type(node.inputs[0]).shape == sum && graph.type(node.inputs[1]).shape == sum;
}

}  // namespace galley
