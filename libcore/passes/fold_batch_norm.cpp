#include "libcore/passes/fold_batch_norm.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/patterns.h"

namespace galley {
namespace {

/// The reason why a batch norm cannot be folded into the preceding product, or "".
std::string reason_against(const Graph& graph, const Node& norm, const Node* product, size_t readers) {
  const FusionPattern* target = product == nullptr ? nullptr : find_pattern(inference_patterns(), *product);
  if (target == nullptr || !target->batch_norm) return "its input is not an output of conv2d or linear";
  if (target->channel_axis != 1 && graph.type(norm.inputs[0]).shape.rank() != 2)
    return cat("features of ", product->op->name, " are not in dimension 1");
  if (readers != 1) return cat("its input has ", readers, " readers");
  for (const auto& [name, id] : graph.outputs()) {
    if (id == norm.inputs[0]) return "its input is the output " + name;
  }
  if (target->activation(*product) != Activation::kNone || product->input(3) != kNoValue)
    return "there is an activation or residual in between";
  return "";
}

}  // namespace

void freeze_batch_norm(Graph& graph) {
  const BatchNorms norms(graph);
  std::deque<Node> nodes;
  for (const Node& node : graph.nodes()) {
    if (BatchNorms::updates(node)) continue;
    const std::optional<BatchNormPattern> norm = norms.match(node);
    nodes.push_back(norm && !norm->frozen ? norms.frozen(node) : node);
  }
  graph.set_nodes(std::move(nodes));
}

PassReport fold_batch_norm(Graph& graph) {
  PassReport report;
  const BatchNorms norms(graph);
  const auto folding = [&](const Node& node) {
    const std::optional<BatchNormPattern> found = norms.match(node);
    return found && found->frozen ? found : std::nullopt;
  };
  const std::vector<int> producers = graph.producers();
  const std::vector<std::vector<int>> users = graph.users();
  const std::deque<Node> old = graph.nodes();
  graph.set_nodes({});
  // The merged node takes the position of the batch norm.
  std::vector<bool> taken(old.size());
  std::vector<bool> folds(old.size());
  for (size_t n = 0; n < old.size(); ++n) {
    if (!folding(old[n])) continue;
    const int producer = producers[static_cast<size_t>(old[n].inputs[0])];
    const Node* product = producer < 0 ? nullptr : &old[static_cast<size_t>(producer)];
    const std::string reason = reason_against(graph, old[n], product, users[static_cast<size_t>(old[n].inputs[0])].size());
    folds[n] = reason.empty();
    if (folds[n]) taken[static_cast<size_t>(producer)] = true;
    (folds[n] ? report.done : report.declined)
        .push_back(folds[n] ? cat(product->path, ": ", product->op->name, " + batch_norm of ", old[n].path)
                            : cat(old[n].path, ": batch_norm stays: ", reason));
  }
  for (size_t n = 0; n < old.size(); ++n) {
    if (taken[n]) continue;
    if (!folds[n]) {
      graph.nodes().push_back(old[n]);
      continue;
    }
    const Node& norm = old[n];
    const Node& product = old[static_cast<size_t>(producers[static_cast<size_t>(norm.inputs[0])])];
    graph.set_path(product.path);
    graph.set_phase(product.phase);
    const BatchNormPattern found = *folding(norm);
    const auto at = [&](ValueId id) { return id == kNoValue ? Value() : graph.at(id); };
    const Value weight = at(product.input(1)), bias = at(product.input(2)), gamma = at(found.gamma), beta = at(found.beta);
    const Value rstd = rsqrt(affine(at(found.var), 1, found.eps));
    const Value scale = gamma ? mul(gamma, rstd) : rstd;
    Shape per_row;
    for (int axis = 0; axis < weight.shape().rank(); ++axis) per_row.push_back(axis == 0 ? weight.shape()[0] : 1);
    const Value folded = mul(weight, reshape(scale, per_row));
    const Value centered = bias ? sub(bias, at(found.mean)) : neg(at(found.mean));
    const Value shift = beta ? add(mul(centered, scale), beta) : mul(centered, scale);
    Node node = product;
    node.inputs = {product.inputs[0], folded.id(), shift.id()};
    node.outputs = norm.outputs;
    node.attributes = find_pattern(inference_patterns(), product)->with_activation(product, found.activation).attributes;
    graph.nodes().push_back(std::move(node));
  }
  graph.set_path("");
  graph.set_phase(Phase::kForward);
  return report;
}

}  // namespace galley
