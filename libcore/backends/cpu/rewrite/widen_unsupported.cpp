#include <algorithm>
#include <map>

#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/ops/convert.h"

namespace galley {
namespace {

bool is_narrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

}  // namespace

PassReport widen_unsupported(Graph& graph, const Target& target) {
  const auto narrow = [&](ValueId id) { return id != kNoValue && is_narrow(graph.type(id).dtype); };
  const auto stays = [&](const Node& node) {
    // Operators without inputs name the type of their output in an attribute and have no other form.
    return std::none_of(node.inputs.begin(), node.inputs.end(), narrow) || node.is("cast") || is_view(graph, node) ||
           target.has_kernel(graph, node, Stage::kBeforeLayout);
  };
  std::map<ValueId, ValueId> moved;
  const auto move = [&](ValueId& id) {
    if (const auto found = moved.find(id); found != moved.end()) id = found->second;
  };
  PassReport report;
  const std::deque<Node> old = graph.nodes();
  graph.set_nodes({});
  for (Node node : old) {
    for (ValueId& id : node.inputs) move(id);
    if (stays(node)) {
      graph.nodes().push_back(std::move(node));
      continue;
    }
    ++report.widened;
    report.done.push_back(cat(node.path, ": ", node.op->name, " in f32"));
    graph.set_path(node.path);
    graph.set_phase(node.phase);
    std::vector<ValueId> inputs = node.inputs;
    // A cast for each reader: one for all would keep a wide copy from the forward to the backward.
    for (ValueId& id : inputs) {
      if (narrow(id)) id = cast(graph.at(id), DType::kF32).id();
    }
    const std::vector<Value> wide = graph.add_node_like(node, std::move(inputs));
    for (size_t i = 0; i < wide.size(); ++i)
      moved[node.outputs[i]] = narrow(node.outputs[i]) ? cast(wide[i], graph.type(node.outputs[i]).dtype).id() : wide[i].id();
  }
  for (auto& [name, id] : graph.outputs()) move(id);
  graph.set_path("");
  graph.set_phase(Phase::kForward);
  return report;
}

}  // namespace galley
