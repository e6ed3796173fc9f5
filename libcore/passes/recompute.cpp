#include "libcore/passes/recompute.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "libcore/ops/collective.h"

namespace galley {
namespace {

/// Rewrites the nodes of the second half of the graph so that they read clones of recomputed values.
class Recomputer {
 public:
  Recomputer(Graph& graph, const RecomputeChoice& choice)
      : graph_(graph), choice_(choice), producers_(graph.producers()), old_(graph.nodes()) {
    for (const auto& [name, id] : graph.outputs()) kept_.insert(id);
    clones_.assign(graph.value_count(), kNoValue);
  }

  PassReport run() {
    graph_.set_nodes({});
    for (const Node& node : old_) {
      Node copy = node;
      // Updates that read the forward pass (running statistics, observed ranges) read the first computation.
      if (node.phase != Phase::kForward && node.op->work != WorkClass::kState) {
        for (ValueId& id : copy.inputs) id = available(id);
      }
      graph_.nodes().push_back(std::move(copy));
    }
    return std::move(report_);
  }

 private:
  bool again(const Node& node) const {
    if (node.phase != Phase::kForward || !node.op->updates.empty() || node.inputs.empty()) return false;
    if (node.op->has_effect && !may_gather_again(node)) return false;
    for (ValueId id : node.outputs) {
      if (kept_.count(id) > 0) return false;
    }
    return choice_(node);
  }

  /// The value itself if it is kept, else its clone, which is created on demand. Uses a work list instead of recursion, because chains may
  /// be long.
  ValueId available(ValueId wanted) {
    if (!is_recomputed(wanted)) return wanted;
    std::vector<ValueId> open{wanted};
    while (!open.empty()) {
      const ValueId id = open.back();
      if (clones_[static_cast<size_t>(id)] != kNoValue) {
        open.pop_back();
        continue;
      }
      const Node& node = old_[static_cast<size_t>(producers_[static_cast<size_t>(id)])];
      const size_t depth = open.size();
      for (ValueId input : node.inputs) {
        if (is_recomputed(input) && clones_[static_cast<size_t>(input)] == kNoValue) open.push_back(input);
      }
      if (open.size() > depth) continue;
      clone(node);
      open.pop_back();
    }
    return clones_[static_cast<size_t>(wanted)];
  }

  bool is_recomputed(ValueId id) const {
    const int producer = id == kNoValue || static_cast<size_t>(id) >= producers_.size() ? -1 : producers_[static_cast<size_t>(id)];
    return producer >= 0 && again(old_[static_cast<size_t>(producer)]);
  }

  void clone(const Node& node) {
    std::vector<ValueId> inputs = node.inputs;
    for (ValueId& id : inputs) {
      if (is_recomputed(id)) id = clones_[static_cast<size_t>(id)];
    }
    Node again = node;
    again.phase = Phase::kBackward;
    const std::vector<Value> outputs = graph_.add_node_like(again, std::move(inputs));
    for (size_t o = 0; o < outputs.size(); ++o) clones_[static_cast<size_t>(node.outputs[o])] = outputs[o].id();
    report_.done.push_back(cat(node.path, ": ", node.op->name, " is recomputed"));
  }

  Graph& graph_;
  const RecomputeChoice& choice_;
  const std::vector<int> producers_;
  const std::deque<Node> old_;
  std::set<ValueId> kept_;
  std::vector<ValueId> clones_;
  PassReport report_;
};

}  // namespace

RecomputeChoice recompute_selective() {
  return [](const Node& node) { return node.op->work != WorkClass::kProduct; };
}

RecomputeChoice recompute_full(const Graph& graph) {
  // Cuts: positions between two forward nodes where only one value is live.
  std::vector<int> last_use(graph.value_count(), -1);
  int index = 0;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward) {
      for (ValueId id : node.inputs) {
        if (id != kNoValue) last_use[static_cast<size_t>(id)] = index;
      }
    }
    ++index;
  }
  struct Cut {
    ValueId value;
    double before;  // bytes of outputs up to this position
  };
  std::vector<Cut> cuts;
  std::set<ValueId> live;
  double total = 0;
  index = 0;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward && !node.inputs.empty()) {
      for (ValueId id : node.inputs) {
        if (id != kNoValue && last_use[static_cast<size_t>(id)] == index) live.erase(id);
      }
      for (ValueId id : node.outputs) {
        total += static_cast<double>(graph.type(id).bytes());
        if (last_use[static_cast<size_t>(id)] > index) live.insert(id);
      }
      if (live.size() == 1) cuts.push_back({*live.begin(), total});
    }
    ++index;
  }
  const double segments = std::max(1.0, std::floor(std::sqrt(static_cast<double>(cuts.size()))));
  auto kept = std::make_shared<std::set<ValueId>>();
  double next = total / segments;
  for (const Cut& cut : cuts) {
    if (cut.before < next) continue;
    kept->insert(cut.value);
    next = cut.before + total / segments;
  }
  return [kept](const Node& node) {
    return std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return kept->count(id) > 0; });
  };
}

PassReport recompute(Graph& graph, const RecomputeChoice& choice) { return Recomputer(graph, choice).run(); }

}  // namespace galley
