#include "libcore/backends/half_gradients.h"

#include <utility>

namespace galley {

PassReport use_half_gradients(Graph& graph, const Target& target) {
  PassReport report;
  const std::vector<int> producers = graph.producers();
  // What is cast to f32, or the value itself.
  const auto uncast = [&](ValueId id) {
    const int n = id == kNoValue ? -1 : producers[static_cast<size_t>(id)];
    if (n < 0 || !graph.nodes()[static_cast<size_t>(n)].is("cast") || graph.type(id).dtype != DType::kF32) return id;
    const ValueId from = graph.nodes()[static_cast<size_t>(n)].inputs[0];
    const DType dtype = graph.type(from).dtype;
    return dtype == DType::kBF16 || dtype == DType::kF16 ? from : id;
  };
  for (Node& node : graph.nodes()) {
    Node changed = node;
    if (node.is("sum_squares")) {
      for (ValueId& id : changed.inputs) id = uncast(id);
    } else if (node.is("adam_update") || node.is("sgd_update")) {
      changed.inputs[1] = uncast(changed.inputs[1]);
    }
    if (changed.inputs == node.inputs || !target.has_kernel(graph, changed, Stage::kBeforeLayout)) continue;
    report.done.push_back(cat(node.path, ": cast + ", node.op->name));
    node = std::move(changed);
  }
  if (!report.done.empty()) graph.remove_dead_nodes();
  return report;
}

}  // namespace galley
