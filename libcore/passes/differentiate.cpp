#include "libcore/passes/differentiate.h"

#include <vector>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/gradient.h"

namespace galley {

std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId objective, std::span<const ValueId> wanted) {
  GALLEY_CHECK(graph.type(objective).elements() == 1 && is_floating(graph.type(objective).dtype),
               "only a floating-point scalar can be differentiated, not ", graph.type(objective));
  const size_t forward_nodes = graph.nodes().size();
  std::vector<bool> leads(graph.value_count());  // on a path from one of the values to differentiate
  for (ValueId id : wanted) leads[static_cast<size_t>(id)] = true;
  for (size_t n = 0; n < forward_nodes; ++n) {
    const Node& node = graph.nodes()[n];
    if (node.phase == Phase::kUpdate) continue;
    bool reached = false;
    for (ValueId id : node.inputs) reached |= id != kNoValue && leads[static_cast<size_t>(id)];
    for (ValueId id : node.outputs)
      leads[static_cast<size_t>(id)] = reached && !node.op->stops_gradient && is_floating(graph.type(id).dtype);
  }
  const std::string saved_path = graph.path();
  const Phase saved_phase = graph.phase();
  graph.set_phase(Phase::kBackward);
  std::map<ValueId, Value> gradients;
  gradients[objective] = full(graph, graph.type(objective), 1.0);
  for (size_t n = forward_nodes; n-- > 0;) {
    const Node node = graph.nodes()[n];  // a copy, because the list of nodes grows below
    if (node.phase == Phase::kUpdate) continue;
    std::vector<Value> output_gradients;
    bool any = false;
    for (ValueId id : node.outputs) {
      const auto found = gradients.find(id);
      any |= found != gradients.end();
      output_gradients.push_back(found == gradients.end() ? Value() : found->second);
    }
    if (!any) continue;
    std::vector<bool> wants;
    bool wants_any = false;
    for (ValueId id : node.inputs) {
      wants.push_back(id != kNoValue && leads[static_cast<size_t>(id)]);
      wants_any |= wants.back();
    }
    if (!wants_any) continue;
    GALLEY_CHECK(node.op->gradient != nullptr, "[", node.op->name, "] has no gradient (", node.op->no_gradient, "), at ", node.path);
    graph.set_path(node.path);
    GradientBuilder builder(graph, node, std::move(output_gradients), wants);
    node.op->gradient(builder);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Value contribution = builder.result()[i];
      if (!contribution) continue;
      Value& sum = gradients[node.inputs[i]];
      sum = sum ? add(sum, contribution) : contribution;
    }
  }
  graph.set_path(saved_path);
  graph.set_phase(saved_phase);
  std::map<ValueId, ValueId> result;
  for (ValueId id : wanted) {
    const auto found = gradients.find(id);
    if (found != gradients.end()) result[id] = found->second.id();
  }
  return result;
}

}  // namespace galley
