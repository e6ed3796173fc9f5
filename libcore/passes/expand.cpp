#include "libcore/passes/expand.h"

#include <algorithm>
#include <map>
#include <set>

#include "libcore/base/counted.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

class Expander {
 public:
  /// `why`: the reason for the report; a node without a reason is not reported. Default: every node is.
  Expander(Graph& graph, const std::function<bool(const Node&)>& keep, std::optional<DType> compute,
           std::function<std::string(const Node&)> why = nullptr)
      : graph_(graph), keep_(keep), compute_(compute), why_(std::move(why)) {}

  PassReport run() {
    const std::string path = graph_.path();
    const Phase phase = graph_.phase();
    std::deque<Node> old = std::exchange(graph_.nodes(), {});
    for (Node& node : old) place(std::move(node));
    for (auto& [name, id] : graph_.outputs()) id = current(id);
    graph_.set_path(path);
    graph_.set_phase(phase);
    return std::move(report_);
  }

 private:
  ValueId current(ValueId id) const {
    const auto found = replaced_.find(id);
    return found == replaced_.end() ? id : found->second;
  }

  /// Appends the node, or the nodes that replace it.
  void place(Node node) {
    for (ValueId& id : node.inputs) id = id == kNoValue ? id : current(id);
    if (!node.op->composite() || keep_(node) || !define(node)) graph_.nodes().push_back(std::move(node));
  }

  /// Emits the definition. Returns false if this form of the operator is a primitive.
  bool define(const Node& node) {
    for (ValueId id : node.inputs) check_format(node, id);
    graph_.set_path(node.path);
    graph_.set_phase(node.phase);
    const OpContext types = context_of(graph_, node);
    std::vector<Value> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? Value() : graph_.at(id));
    const size_t before = graph_.nodes().size();
    Expansion expansion(graph_, *node.op, types, std::move(inputs), compute_.value_or(default_compute_type(types)));
    node.op->definition(expansion);
    if (expansion.kept()) {
      graph_.nodes().resize(before);
      return false;
    }
    std::vector<ValueId> results;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Value result = expansion.result()[o];
      GALLEY_ASSERT(result, "the definition of ", node.op->name, " leaves output ", o, " unset");
      results.push_back(finished(result, graph_.type(node.outputs[o])).id());
    }
    // The emitted nodes may be composites too.
    std::deque<Node> emitted(std::make_move_iterator(graph_.nodes().begin() + static_cast<std::ptrdiff_t>(before)),
                             std::make_move_iterator(graph_.nodes().end()));
    graph_.nodes().resize(before);
    ++depth_;
    for (Node& part : emitted) place(std::move(part));
    if (--depth_ == 0) report(node, graph_.nodes().size() - before);
    for (size_t o = 0; o < results.size(); ++o) replaced_[node.outputs[o]] = current(results[o]);
    return true;
  }

  void report(const Node& node, size_t nodes) {
    const std::string why = why_ ? why_(node) : "";
    if (why_ && why.empty()) return;
    report_.done.push_back(cat(node.path.empty() ? "" : node.path + ": ", node.op->name, " becomes ",
                               counted(static_cast<int64_t>(nodes), "node"), why.empty() ? "" : cat(" (", why, ")")));
  }

  void check_format(const Node& node, ValueId id) const {
    if (id == kNoValue) return;
    GALLEY_ASSERT(graph_.type(id).format.is_contiguous(), node.op->name, " at ", node.path,
                  " has memory formats; expand must run before assign_layout");
  }

  /// Converts a value to the type of the one that it replaces, dimension names included.
  static Value finished(Value value, const TensorType& type) {
    value = cast(value, type.dtype);
    if (value.type().names == type.names) return value;
    ReshapeAttrs named;
    named.shape.assign(type.shape.begin(), type.shape.end());
    named.names = type.names;
    if (named.names.empty()) named.names.resize(named.shape.size());
    return reshape(value, named);
  }

  Graph& graph_;
  const std::function<bool(const Node&)>& keep_;
  std::optional<DType> compute_;
  std::function<std::string(const Node&)> why_;
  std::map<ValueId, ValueId> replaced_;  // values of replaced nodes, and their replacements
  int depth_ = 0;                        // nesting depth of a node in definitions; 0: a node of the graph
  PassReport report_;
};

/// The composites that the target does not support in the formats that layout chooses, by their first output, with the reason: "onednn:
/// groups; cpu: rank 6".
std::map<ValueId, std::string> refused(const Graph& graph, const Target& target, const LayoutOptions& layout) {
  const auto reason = [&](const Graph& of, const Node& node, Stage stage) {
    return node.op->composite() && !is_view(of, node) ? target.refusal(of, node, stage) : std::string();
  };
  if (std::all_of(graph.nodes().begin(), graph.nodes().end(),
                  [&](const Node& node) { return reason(graph, node, Stage::kBeforeLayout).empty(); }))
    return {};
  Graph laid = graph;
  assign_layout(laid, layout);
  // Layout adds only primitives (reorders) and keeps the order of nodes.
  std::map<ValueId, std::string> found;
  auto node = graph.nodes().begin();
  for (const Node& there : laid.nodes()) {
    if (!there.op->composite()) continue;
    node = std::find_if(node, graph.nodes().end(), [](const Node& each) { return each.op->composite(); });
    GALLEY_ASSERT(node != graph.nodes().end() && node->op == there.op);
    std::string why = reason(laid, there, Stage::kAfterLayout);
    if (!why.empty()) found.emplace(node->outputs[0], std::move(why));
    ++node;
  }
  return found;
}

}  // namespace

PassReport expand(Graph& graph, const std::function<bool(const Node&)>& keep, std::optional<DType> compute) {
  return Expander(graph, keep, compute).run();
}

PassReport expand_unsupported(Graph& graph, const Target& target, const LayoutOptions& layout) {
  PassReport report;
  std::set<ValueId> tried;  // avoids trying a form again that is a primitive
  for (;;) {
    std::map<ValueId, std::string> next;
    for (auto& [id, reason] : refused(graph, target, layout))
      if (tried.insert(id).second) next.emplace(id, std::move(reason));
    if (next.empty()) return report;
    const std::function<bool(const Node&)> keep = [&](const Node& node) { return !next.contains(node.outputs[0]); };
    const auto why = [&](const Node& node) { return graph.type(node.outputs[0]).elements() > 1 ? next.at(node.outputs[0]) : ""; };
    report.add(Expander(graph, keep, {}, why).run());
  }
}

}  // namespace galley
