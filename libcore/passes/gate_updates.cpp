#include "libcore/passes/gate_updates.h"

#include <algorithm>
#include <limits>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"

namespace galley {
namespace {

TensorType flag(const Placement& placement = {}) {
  TensorType type;
  type.dtype = DType::kBool;
  type.placement = placement;
  return type;
}

/// The first outputs of the nodes that a value depends on.
std::set<ValueId> needed_for(const Graph& graph, ValueId value) {
  if (value == kNoValue) return {};
  std::set<ValueId> values{value}, first;
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    if (std::none_of(node->outputs.begin(), node->outputs.end(), [&](ValueId id) { return values.contains(id); })) continue;
    first.insert(node->outputs[0]);
    values.insert(node->inputs.begin(), node->inputs.end());
  }
  return first;
}

}  // namespace

void gate_updates(Graph& graph, const UpdateGates& gates) {
  const std::set<ValueId> before = needed_for(graph, gates.squares);
  std::deque<Node> others, updates;
  for (Node& node : graph.nodes()) {
    const bool needed = !node.outputs.empty() && before.contains(node.outputs[0]);
    const bool is_update = !needed && (node.phase == Phase::kUpdate || !node.op->updates.empty());
    (is_update ? updates : others).push_back(std::move(node));
  }
  graph.set_nodes(std::move(others));
  if (updates.empty()) return;
  const std::string path = graph.path();
  const Phase phase = graph.phase();
  graph.set_path("guard");
  graph.set_phase(Phase::kUpdate);
  Value loss, finite;
  if (gates.value != kNoValue) {
    const TensorType stopped = flag(graph.type(gates.value).placement);
    loss = finite_gate(graph.add_input(gates.stopped, stopped, ValueRole::kState), graph.at(gates.value));
  }
  Value gate = loss;
  if (gates.squares != kNoValue) {
    const Value squares = graph.at(gates.squares);
    finite = less(squares, full(graph, squares.type(), std::numeric_limits<double>::infinity()));  // false for NaN
    gate = loss ? where(loss, finite, full(graph, flag(), 0)) : finite;
  }
  graph.set_path(path);
  graph.set_phase(phase);
  for (Node& node : updates) {
    if (node.op->gate >= 0) {
      const auto place = static_cast<size_t>(node.op->gate);
      if (node.inputs.size() <= place) node.inputs.resize(place + 1, kNoValue);
      if (node.inputs[place] == kNoValue && gate) node.inputs[place] = gate.id();
    } else {
      GALLEY_ASSERT(node.op->updates.empty(), node.op->name, " at ", node.path, " updates state but has no gate");
    }
    graph.nodes().push_back(std::move(node));
  }
  if (gates.scaling) update_loss_scale(graph, finite, loss, *gates.scaling);
}

void gate_updates(Graph& graph, ValueId value, const std::string& stopped) { gate_updates(graph, {.value = value, .stopped = stopped}); }

}  // namespace galley
