#include "libcore/backends/pixel_casts.h"

#include <algorithm>
#include <memory>

#include "libcore/ops/pixels.h"

namespace galley {
namespace {

bool is_output(const Graph& graph, ValueId id) {
  return std::any_of(graph.outputs().begin(), graph.outputs().end(), [id](const auto& output) { return output.second == id; });
}

}  // namespace

PassReport fold_pixel_casts(Graph& graph, const Target& target) {
  PassReport report;
  const std::vector<std::vector<int>> users = graph.users();
  for (Node& node : graph.nodes()) {
    if (!node.is("normalize_pixels") || is_output(graph, node.outputs[0])) continue;
    const std::vector<int>& readers = users[static_cast<size_t>(node.outputs[0])];
    if (readers.empty()) continue;
    const auto reader = [&](int n) -> Node& { return graph.nodes()[static_cast<size_t>(n)]; };
    const DType dtype = graph.type(reader(readers.front()).outputs[0]).dtype;
    const bool only_casts = std::all_of(readers.begin(), readers.end(), [&](int n) {
      const ValueId made = reader(n).outputs[0];
      return reader(n).is("cast") && graph.type(made).dtype == dtype && !is_output(graph, made);
    });
    if (!only_casts || (dtype != DType::kBF16 && dtype != DType::kF16)) continue;
    auto attributes = std::make_shared<NormalizePixelsAttrs>(dynamic_cast<const NormalizePixelsAttrs&>(*node.attributes));
    attributes->dtype = dtype;
    Node before = node;
    node.attributes = std::move(attributes);
    graph.value(node.outputs[0]).type.dtype = dtype;
    if (!target.has_kernel(graph, node, Stage::kBeforeLayout)) {
      graph.value(node.outputs[0]).type.dtype = DType::kF32;
      node = std::move(before);
      continue;
    }
    for (const int n : readers) {
      const ValueId made = reader(n).outputs[0];
      for (Node& other : graph.nodes()) std::replace(other.inputs.begin(), other.inputs.end(), made, node.outputs[0]);
    }
    report.done.push_back(cat(node.path, ": ", node.op->name, " + cast"));
  }
  if (!report.done.empty()) graph.remove_dead_nodes();
  return report;
}

}  // namespace galley
