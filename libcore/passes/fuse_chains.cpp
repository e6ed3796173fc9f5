#include "libcore/passes/fuse_chains.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "libcore/ops/elementwise_chain.h"

namespace galley {
namespace {

/// A chain under construction. An operand is the index of an input or, from kResult on, of a step.
struct Draft {
  static constexpr int64_t kResult = 1 << 20;
  std::vector<ChainStep> steps;
  std::vector<ValueId> inputs;
  std::string path;  // the nearest module that contains the modules of all steps

  /// The index of an input, which is added if it is new.
  int64_t input(ValueId id) {
    const auto known = std::find(inputs.begin(), inputs.end(), id);
    const int64_t place = known - inputs.begin();
    if (known == inputs.end()) inputs.push_back(id);
    return place;
  }
};

/// The innermost module that contains both: "layer1.0" for "layer1.0.bn1" and "layer1.0.relu"; "" is the model.
std::string common_module(const std::string& a, const std::string& b) {
  size_t common = 0;  // length of the common leading components
  for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.', b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) common = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, common);
}

/// A chain that consists of this node; nullopt if it cannot be a step.
std::optional<Draft> draft_of(const Graph& graph, const Node& node) {
  if (!is_chain_step(*node.op)) return std::nullopt;
  const TensorType& y = graph.type(node.outputs[0]);
  if (!is_floating(y.dtype) || y.format.is_blocked()) return std::nullopt;
  for (ValueId id : node.inputs) {
    if (graph.type(id).dtype != y.dtype || graph.type(id).format.is_blocked()) return std::nullopt;
  }
  Draft draft{.path = node.path};
  std::vector<int64_t> operands;
  for (ValueId id : node.inputs) operands.push_back(draft.input(id));
  draft.steps.emplace_back(*node.op, node.attributes, std::move(operands));
  return draft;
}

/// Appends `outer`, whose input `value` is the output of `inner`, to `inner`.
Draft joined(const Draft& inner, const Draft& outer, ValueId value) {
  Draft made = inner;
  made.path = common_module(inner.path, outer.path);
  const auto before = static_cast<int64_t>(inner.steps.size());
  std::vector<int64_t> input_of;  // by input of `outer`
  for (ValueId id : outer.inputs) input_of.push_back(id == value ? Draft::kResult + before - 1 : made.input(id));
  for (ChainStep step : outer.steps) {
    for (int64_t& operand : step.operands) operand = operand >= Draft::kResult ? operand + before : input_of[static_cast<size_t>(operand)];
    made.steps.push_back(std::move(step));
  }
  return made;
}

std::shared_ptr<const Options> attributes_of(const Draft& draft) {
  auto attrs = std::make_shared<ElementwiseChainAttrs>();
  attrs->steps = draft.steps;
  const auto inputs = static_cast<int64_t>(draft.inputs.size());
  for (ChainStep& step : attrs->steps) {
    for (int64_t& operand : step.operands) operand = operand >= Draft::kResult ? operand - Draft::kResult + inputs : operand;
  }
  return attrs;
}

class ChainFuser {
 public:
  ChainFuser(Graph& graph, const Target& target)
      : graph_(graph), target_(target), nodes_(graph.nodes()), drafts_(nodes_.size()), taken_by_(nodes_.size(), kNone) {
    for (const auto& [name, id] : graph.outputs()) outputs_.insert(id);
    index_values();
  }

  PassReport run() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      drafts_[n] = draft_of(graph_, nodes_[n]);
      while (drafts_[n] && grow(n)) {
      }
    }
    std::deque<Node> kept;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (taken_by_[n] != kNone) continue;
      if (!drafts_[n] || drafts_[n]->steps.size() < 2) {
        kept.push_back(nodes_[n]);
        continue;
      }
      kept.push_back(chain_node(n, *drafts_[n]));
      std::string what;
      for (const ChainStep& step : drafts_[n]->steps) what += cat(what.empty() ? "" : " + ", step.op->name);
      const std::string& path = kept.back().path;
      report_.done.push_back(path.empty() ? what : cat(path, ": ", what));
    }
    graph_.set_nodes(std::move(kept));
    return std::move(report_);
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  /// Adds one more node to the chain that ends in node n. Returns false if there is none.
  bool grow(size_t n) {
    for (ValueId id : drafts_[n]->inputs) {
      const int made = producers_[static_cast<size_t>(id)];
      if (made < 0 || !takes(n, static_cast<size_t>(made), id)) continue;
      Draft longer = joined(*drafts_[static_cast<size_t>(made)], *drafts_[n], id);
      if (!target_.has_kernel(graph_, chain_node(n, longer), Stage::kAfterLayout)) continue;
      drafts_[n] = std::move(longer);
      taken_by_[static_cast<size_t>(made)] = n;
      return true;
    }
    return false;
  }

  Node chain_node(size_t last, const Draft& draft) const {
    Node node = nodes_[last];
    node.op = &elementwise_chain_op();
    node.attributes = attributes_of(draft);
    node.inputs = draft.inputs;
    node.path = draft.path;
    return node;
  }

  void index_values() {
    const size_t count = graph_.value_count();
    producers_ = graph_.producers();
    readers_.resize(count);
    constant_.resize(count);
    root_.resize(count);
    for (size_t v = 0; v < count; ++v) root_[v] = static_cast<ValueId>(v);
    for (ValueId id : graph_.inputs()) {
      const ValueRole role = graph_.value(id).role;
      constant_[static_cast<size_t>(id)] = role == ValueRole::kParameter || role == ValueRole::kBuffer;
    }
    for (size_t n = 0; n < nodes_.size(); ++n) index_node(n);
  }

  void index_node(size_t n) {
    const Node& node = nodes_[n];
    const bool constant = std::all_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId id) { return id == kNoValue || constant_[static_cast<size_t>(id)]; });
    for (ValueId id : node.outputs) constant_[static_cast<size_t>(id)] = constant;
    for (ValueId id : node.inputs) {
      if (id != kNoValue) readers_[static_cast<size_t>(id)].insert(n);
    }
    if (is_view(graph_, node)) root_[static_cast<size_t>(node.outputs[0])] = root_[static_cast<size_t>(node.inputs[0])];
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old != kNoValue) overwritten_[root_[static_cast<size_t>(old)]].push_back(n);
    }
  }

  /// Whether the chain that ends in node n may compute the value of node `made`.
  bool takes(size_t n, size_t made, ValueId value) const {
    if (!drafts_[made] || taken_by_[made] != kNone || nodes_[made].phase != nodes_[n].phase || outputs_.contains(value)) return false;
    if (constant_[static_cast<size_t>(value)]) return false;  // computed once, before the first run
    const TensorType &between = graph_.type(value), &y = graph_.type(nodes_[n].outputs[0]);
    if (between.shape != y.shape || between.dtype != y.dtype || !(between.format == y.format)) return false;
    const std::set<size_t>& readers = readers_[static_cast<size_t>(value)];
    if (!std::all_of(readers.begin(), readers.end(), [&](size_t reader) { return chain_of(reader) == n; })) return false;
    return reads_the_same_later(n, made) && !keeps_more(n, made);
  }

  /// Whether no node in between overwrites inputs of `made`.
  bool reads_the_same_later(size_t n, size_t made) const {
    for (ValueId id : drafts_[made]->inputs) {
      const auto writers = overwritten_.find(root_[static_cast<size_t>(id)]);
      if (writers == overwritten_.end()) continue;
      if (std::any_of(writers->second.begin(), writers->second.end(), [&](size_t w) { return w > made && w < n; })) return false;
    }
    return true;
  }

  /// Whether fusion would extend the lifetime of inputs of `made` that take more memory than its output. This cannot happen if no node is
  /// in between.
  bool keeps_more(size_t n, size_t made) const {
    bool adjacent = true;
    for (size_t m = made + 1; m < n && adjacent; ++m) adjacent = chain_of(m) == n || is_view(graph_, nodes_[m]);
    if (adjacent) return false;
    int64_t kept = 0;
    for (ValueId id : drafts_[made]->inputs) {
      const std::set<size_t>& readers = readers_[static_cast<size_t>(id)];
      const bool ends = std::all_of(readers.begin(), readers.end(), [&](size_t reader) { return chain_of(reader) <= made; });
      if (ends && graph_.value(id).role == ValueRole::kActivation && !outputs_.contains(id)) kept += graph_.type(id).bytes();
    }
    return kept > graph_.type(nodes_[made].outputs[0]).bytes();
  }

  /// The last node of the chain that contains a node; the node itself if it is not in a chain.
  size_t chain_of(size_t node) const {
    while (taken_by_[node] != kNone) node = taken_by_[node];
    return node;
  }

  Graph& graph_;
  const Target& target_;
  std::deque<Node> nodes_;
  std::vector<std::optional<Draft>> drafts_;  // of nodes that may be steps, by the last node of the chain
  std::vector<size_t> taken_by_;
  std::set<ValueId> outputs_;
  std::vector<int> producers_;
  std::vector<std::set<size_t>> readers_;
  std::vector<bool> constant_;                          // depends only on parameters and buffers
  std::vector<ValueId> root_;                           // the array that a value is a view of
  std::map<ValueId, std::vector<size_t>> overwritten_;  // nodes that update an array in place
  PassReport report_;
};

}  // namespace

PassReport fuse_chains(Graph& graph, const Target& target) { return ChainFuser(graph, target).run(); }

}  // namespace galley
