#include "libcore/passes/split_stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "libcore/base/error.h"

namespace galley {
namespace {

bool is_forward(const Node& node) { return node.phase == Phase::kForward; }

/// Assigns nodes to stages.
class Stages {
 public:
  Stages(const Graph& graph, const std::vector<size_t>& cuts)
      : graph_(graph), made_by_(graph.producers()), count_(static_cast<int>(cuts.size()) + 1) {
    of_.assign(graph.nodes().size(), 0);
    readers_.resize(graph.value_count());
    size_t forward = 0;
    for (size_t n = 0; n < of_.size(); ++n) {
      const Node& node = graph.nodes()[n];
      if (!is_forward(node)) continue;
      of_[n] = static_cast<int>(std::upper_bound(cuts.begin(), cuts.end(), forward++) - cuts.begin());
      of_path_[node.path] = of_[n];
      for (const ValueId id : node.inputs) {
        if (id != kNoValue) readers_[static_cast<size_t>(id)].insert(of_[n]);
      }
    }
    for (size_t n = 0; n < of_.size(); ++n) {
      if (!is_forward(graph.nodes()[n])) of_[n] = backward_stage(graph.nodes()[n]);
    }
  }
  int count() const { return count_; }
  int of(size_t node) const { return of_[node]; }
  /// Constants are computed where they are read.
  bool is_constant(ValueId id) const { return maker(id) >= 0 && graph_.nodes()[static_cast<size_t>(maker(id))].inputs.empty(); }
  int maker(ValueId id) const { return made_by_[static_cast<size_t>(id)]; }

 private:
  /// Whether a node adds elements of gradients, as those of a bias: it belongs to the stage of its module.
  bool sums(const Node& node) const {
    int64_t read = 0, made = 0;
    for (const ValueId id : node.inputs) read = id == kNoValue ? read : std::max(read, graph_.type(id).shape.elements());
    for (const ValueId id : node.outputs) made += graph_.type(id).shape.elements();
    return made < read;
  }
  /// The last stage that has all forward values, parameters and fed arrays which the node reads, not after those of the gradients.
  int backward_stage(const Node& node) const {
    int last = count_ - 1;
    std::vector<std::set<int>> places;
    for (const ValueId id : node.inputs) {
      if (id == kNoValue || is_constant(id)) continue;
      const int made = maker(id);
      if (made >= 0 && !is_forward(graph_.nodes()[static_cast<size_t>(made)])) {
        last = std::min(last, of_[static_cast<size_t>(made)]);
        continue;
      }
      std::set<int> at = readers_[static_cast<size_t>(id)];
      if (made >= 0) at.insert(of_[static_cast<size_t>(made)]);
      // Fed arrays count, so that the gradient of a first layer is computed where the layer is.
      const ValueRole role = graph_.value(id).role;
      if (!at.empty() && (made >= 0 || role == ValueRole::kParameter || role == ValueRole::kInput)) places.push_back(std::move(at));
    }
    if (places.empty() && sums(node)) {
      const auto module = of_path_.find(node.path);
      return module == of_path_.end() ? last : std::min(last, module->second);
    }
    for (int stage = last; stage >= 0; --stage) {
      if (std::all_of(places.begin(), places.end(), [&](const std::set<int>& at) { return at.count(stage) > 0; })) return stage;
    }
    return last;
  }

  const Graph& graph_;
  std::vector<int> made_by_;
  int count_;
  std::vector<int> of_;                 // by node
  std::vector<std::set<int>> readers_;  // stages of forward nodes, by value
  std::map<std::string, int> of_path_;  // the last one of forward nodes
};

std::string name_of(const Graph& graph, ValueId id) { return graph.value(id).name.empty() ? cat("value", id) : graph.value(id).name; }

class Splitter {
 public:
  Splitter(const Graph& graph, const std::vector<size_t>& cuts)
      : graph_(graph), stages_(graph, cuts), made_(static_cast<size_t>(stages_.count())) {}

  std::vector<StageGraphs> run() {
    find_messages();
    for (size_t n = 0; n < graph_.nodes().size(); ++n) add(n);
    for (const auto& [name, id] : graph_.outputs()) {
      const int maker = stages_.maker(id);
      GALLEY_ASSERT(maker >= 0, "the output ", name, " is an input");
      const bool forward = is_forward(graph_.nodes()[static_cast<size_t>(maker)]);
      Part& part = part_of(stages_.of(static_cast<size_t>(maker)), forward);
      part.graph.add_output(name, part.map.at(id));
    }
    std::vector<StageGraphs> result(made_.size());
    for (size_t s = 0; s < made_.size(); ++s) {
      for (const bool forward : {true, false}) {
        Part& part = made_[s].at(forward ? 0 : 1);
        for (const ValueId id : part.hands_over) part.graph.add_output(name_of(graph_, id), part.map.at(id));
        (forward ? result[s].forward : result[s].backward) = std::move(part.graph);
      }
    }
    for (const auto& [key, values] : messages_) {
      for (const ValueId id : values) {
        StageGraphs &from = result[static_cast<size_t>(key.from)], &to = result[static_cast<size_t>(key.to)];
        (key.forward ? from.send_forward : from.send_backward).push_back({name_of(graph_, id), graph_.type(id), key.to});
        (key.forward ? to.receive_forward : to.receive_backward).push_back({name_of(graph_, id), graph_.type(id), key.from});
      }
    }
    return result;
  }

 private:
  struct Part {
    Graph graph;
    std::map<ValueId, ValueId> map;
    std::set<ValueId> hands_over;  // to the backward pass, or to other stages
  };
  struct Key {
    bool forward;
    int from, to;
    bool operator<(const Key& o) const { return std::tie(forward, from, to) < std::tie(o.forward, o.from, o.to); }
  };
  Part& part_of(int stage, bool forward) { return made_[static_cast<size_t>(stage)].at(forward ? 0 : 1); }

  void find_messages() {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.inputs.empty()) continue;
      const int to = stages_.of(n);
      for (const ValueId id : node.inputs) {
        const int maker = id == kNoValue ? -1 : stages_.maker(id);
        if (maker < 0 || stages_.is_constant(id)) continue;
        const int from = stages_.of(static_cast<size_t>(maker));
        const bool made_forward = is_forward(graph_.nodes()[static_cast<size_t>(maker)]);
        if (from == to && made_forward == is_forward(node)) continue;
        part_of(from, made_forward).hands_over.insert(id);
        if (from == to) continue;
        GALLEY_ASSERT(made_forward ? from < to || !is_forward(node) : from > to, node.op->name, " at ", node.path, " of stage ", to,
                      " reads a value of stage ", from);
        messages_[{from < to, from, to}].insert(id);
      }
    }
  }

  ValueId input(Part& part, ValueId id) {
    if (id == kNoValue) return id;
    const auto found = part.map.find(id);
    if (found != part.map.end()) return found->second;
    if (stages_.is_constant(id)) {
      const Node& node = graph_.nodes()[static_cast<size_t>(stages_.maker(id))];
      const std::vector<Value> made = part.graph.add_node_like(node, {});
      for (size_t o = 0; o < made.size(); ++o) part.map[node.outputs[o]] = made[o].id();
      return part.map.at(id);
    }
    const ValueInfo& info = graph_.value(id);
    const ValueRole role = stages_.maker(id) >= 0 ? ValueRole::kInput : info.role;
    return part.map[id] = part.graph.add_input(name_of(graph_, id), info.type, role).id();
  }

  void add(size_t n) {
    const Node& node = graph_.nodes()[n];
    if (node.inputs.empty()) {
      const bool output =
          std::any_of(graph_.outputs().begin(), graph_.outputs().end(), [&](const auto& o) { return o.second == node.outputs[0]; });
      if (!output) return;
    }
    Part& part = part_of(stages_.of(n), is_forward(node));
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(input(part, id));
    const std::vector<Value> made = part.graph.add_node_like(node, std::move(inputs));
    for (size_t o = 0; o < made.size(); ++o) part.map[node.outputs[o]] = made[o].id();
  }

  const Graph& graph_;
  Stages stages_;
  std::vector<std::array<Part, 2>> made_;
  std::map<Key, std::set<ValueId>> messages_;
};

}  // namespace

std::vector<StageGraphs> split_stages(const Graph& graph, const std::vector<size_t>& cuts) { return Splitter(graph, cuts).run(); }

}  // namespace galley
