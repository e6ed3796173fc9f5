#include "libcore/backends/joined_heads.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "libcore/ops/attention.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/shape.h"
#include "libcore/passes/hoist_prepare.h"

namespace galley {
namespace {

using namespace attention_port;

class JoinedHeads {
 public:
  JoinedHeads(Graph& graph, const Target& target)
      : graph_(graph),
        target_(target),
        nodes_(graph.nodes()),
        producers_(graph.producers()),
        users_(graph.users()),
        once_(computed_once(graph)) {}

  PassReport run() {
    if (std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.phase != Phase::kForward; })) return {};
    std::deque<Node> kept;
    const std::string path = graph_.path();
    for (const Node& node : nodes_) {
      graph_.set_nodes({});
      if (!node.is("attention") || !join(node)) graph_.set_nodes({node});
      for (Node& made : graph_.nodes()) kept.push_back(std::move(made));
    }
    graph_.set_nodes(std::move(kept));
    graph_.set_path(path);
    if (!report_.done.empty()) graph_.remove_dead_nodes();
    return std::move(report_);
  }

 private:
  /// The linear layer of which the value is a view, if nothing else reads it and its weights may be joined to others; null: there is none.
  const Node* layer_of(ValueId heads) const {
    const Node* layer = maker_of(heads);
    while (layer != nullptr && layer->is("reshape")) layer = maker_of(layer->inputs[0]);
    if (layer == nullptr || !layer->is("linear") || layer->attrs<LinearAttrs>().activation != Activation::kNone) return nullptr;
    const Shape &x = graph_.type(layer->inputs[0]).shape, &shape = graph_.type(heads).shape;
    if (x.rank() != 3 || x[0] != shape[0] || x[1] != shape[1]) return nullptr;
    const ValueId weight = layer->inputs[1], bias = layer->input(2);
    const bool joins = once_[static_cast<size_t>(weight)] && producers_[static_cast<size_t>(weight)] >= 0 &&
                       (bias == kNoValue || once_[static_cast<size_t>(bias)]);
    return joins ? layer : nullptr;
  }
  /// The node that computes a value which nothing else reads; null: there is none.
  const Node* maker_of(ValueId id) const {
    const int n = producers_[static_cast<size_t>(id)];
    const bool output = std::any_of(graph_.outputs().begin(), graph_.outputs().end(), [id](const auto& o) { return o.second == id; });
    return n < 0 || output || users_[static_cast<size_t>(id)].size() != 1 ? nullptr : &nodes_[static_cast<size_t>(n)];
  }
  /// Can both be one layer?
  bool alike(const Node& a, const Node& b) const {
    const auto dtype = [&](const Node& node, size_t i) { return graph_.type(node.inputs[i]).dtype; };
    const bool biases = a.input(2) != kNoValue;
    return a.inputs[0] == b.inputs[0] && dtype(a, 1) == dtype(b, 1) && biases == (b.input(2) != kNoValue) &&
           (!biases || dtype(a, 2) == dtype(b, 2));
  }

  /// The heads [B,T,heads,D] of layers of one array.
  Value heads_of(const std::vector<const Node*>& layers, int64_t heads) {
    ConcatAttrs along_outputs;
    along_outputs.axis = 0;
    const auto joined = [&](size_t input) {
      std::vector<Value> parts;
      for (const Node* layer : layers) parts.push_back(graph_.at(layer->inputs[input]));
      return concat(parts, along_outputs);
    };
    const Value rows = linear(graph_.at(layers[0]->inputs[0]), joined(1), layers[0]->input(2) == kNoValue ? Value() : joined(2));
    const Shape& shape = rows.shape();
    return reshape(rows, Shape{shape[0], shape[1], heads, shape[2] / heads});
  }

  /// Appends the nodes that replace `node`. False: there are none.
  bool join(const Node& node) {
    if (node.input(kK) == kNoValue || node.input(kV) == kNoValue) return false;
    const Node *k = layer_of(node.inputs[kK]), *v = layer_of(node.inputs[kV]), *q = layer_of(node.inputs[kQ]);
    if (k == nullptr || v == nullptr || !alike(*k, *v)) return false;
    const Shape &keys = graph_.type(node.inputs[kK]).shape, &values = graph_.type(node.inputs[kV]).shape;
    if (keys != values) return false;
    const Shape& queries = graph_.type(node.inputs[kQ]).shape;
    const bool all = q != nullptr && alike(*q, *k);
    graph_.set_path(node.path);
    const std::vector<const Node*> layers = all ? std::vector{q, k, v} : std::vector{k, v};
    const Value heads = heads_of(layers, (all ? queries[2] : 0) + 2 * keys[2]);
    auto attrs = std::make_shared<AttentionAttrs>(node.attrs<AttentionAttrs>());
    std::vector<ValueId> inputs = node.inputs;
    if (all) attrs->kv_heads = keys[2];
    inputs[all ? kQ : kK] = heads.id();
    for (int i = all ? kK : kV; i <= kV; ++i) inputs[static_cast<size_t>(i)] = kNoValue;
    Node joined = node;
    joined.attributes = attrs;
    joined.inputs = inputs;
    if (!target_.has_kernel(graph_, joined, Stage::kBeforeLayout)) return false;
    graph_.nodes().push_back(std::move(joined));
    report_.done.push_back(cat(node.path, ": ", layers.size(), " linear"));
    return true;
  }

  Graph& graph_;
  const Target& target_;
  const std::deque<Node> nodes_;
  std::vector<int> producers_;
  std::vector<std::vector<int>> users_;
  std::vector<bool> once_;
  PassReport report_;
};

}  // namespace

PassReport join_heads(Graph& graph, const Target& target) { return JoinedHeads(graph, target).run(); }

}  // namespace galley
