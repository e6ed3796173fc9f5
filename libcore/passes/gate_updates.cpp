#include "libcore/passes/gate_updates.h"

#include "libcore/ops/update.h"

namespace galley {

void gate_updates(Graph& graph, ValueId value, const std::string& state) {
  std::deque<Node> others, updates;
  for (Node& node : graph.nodes())
    (node.phase == Phase::kUpdate || !node.op->updates.empty() ? updates : others).push_back(std::move(node));
  graph.set_nodes(std::move(others));
  if (updates.empty()) return;
  TensorType type;
  type.dtype = DType::kBool;
  const std::string path = graph.path();
  const Phase phase = graph.phase();
  graph.set_path("guard");
  graph.set_phase(Phase::kUpdate);
  const ValueId gate = finite_gate(graph.add_input(state, type, ValueRole::kState), graph.at(value)).id();
  graph.set_path(path);
  graph.set_phase(phase);
  for (Node& node : updates) {
    if (node.op->gate >= 0) {
      node.inputs.resize(static_cast<size_t>(node.op->gate) + 1, kNoValue);
      node.inputs.back() = gate;
    } else {
      GALLEY_ASSERT(node.op->updates.empty(), node.op->name, " at ", node.path, " updates state but has no gate");
    }
    graph.nodes().push_back(std::move(node));
  }
}

}  // namespace galley
