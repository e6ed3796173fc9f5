#include "libcore/passes/narrow_buffers.h"

#include <map>
#include <set>

#include "libcore/ops/convert.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

/// The places of mean and variance among a batch norm's inputs; empty: the node is another one.
std::vector<size_t> statistics_of(const Node& node) {
  if (node.op == &batch_norm_update_op()) return {0, 1};
  if (node.op == &batch_norm_inference_op()) return {3, 4};
  return {};
}

std::set<ValueId> statistics_in(const Graph& graph) {
  std::set<ValueId> found;
  for (const Node& node : graph.nodes()) {
    for (const size_t place : statistics_of(node)) {
      const ValueInfo& info = graph.value(node.inputs[place]);
      if (info.role == ValueRole::kBuffer && info.type.dtype == DType::kF32) found.insert(node.inputs[place]);
    }
  }
  return found;
}

}  // namespace

void narrow_buffers(Graph& graph, DType dtype) {
  GALLEY_ASSERT(dtype == DType::kBF16 || dtype == DType::kF16);
  const std::set<ValueId> buffers = statistics_in(graph);
  if (buffers.empty()) return;
  for (const ValueId id : buffers) graph.value(id).type.dtype = dtype;
  const std::string path = graph.path();
  const Phase phase = graph.phase();
  const std::deque<Node> old = graph.nodes();
  graph.set_nodes({});
  std::map<ValueId, ValueId> moved;
  for (const Node& node : old) {
    graph.set_path(node.path);
    graph.set_phase(node.phase);
    const bool updates = node.op == &batch_norm_update_op();
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) {
      const auto found = moved.find(id);
      const ValueId now = found == moved.end() ? id : found->second;
      inputs.push_back(buffers.count(now) > 0 && !updates ? cast(graph.at(now), DType::kF32).id() : now);
    }
    const std::vector<Value> made = graph.add_node_like(node, std::move(inputs));
    for (size_t i = 0; i < made.size(); ++i) moved[node.outputs[i]] = made[i].id();
  }
  for (auto& [name, id] : graph.outputs()) {
    if (const auto found = moved.find(id); found != moved.end()) id = found->second;
  }
  graph.set_path(path);
  graph.set_phase(phase);
}

}  // namespace galley
