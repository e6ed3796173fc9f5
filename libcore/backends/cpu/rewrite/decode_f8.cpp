#include <algorithm>

#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/passes/expand.h"

namespace galley {

PassReport decode_f8(Graph& graph) {
  const auto multiplies_f8 = [](const Node& node) { return node.is("f8_linear") || node.is("f8_conv2d"); };
  PassReport report;
  for (const Node& node : graph.nodes()) {
    if (multiplies_f8(node)) report.done.push_back(cat(node.path, ": ", node.op->name, " in f32"));
  }
  if (!report.done.empty()) expand(graph, [&](const Node& node) { return !multiplies_f8(node); });
  return report;
}

}  // namespace galley
