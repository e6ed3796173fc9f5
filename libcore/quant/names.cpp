#include "libcore/quant/names.h"

#include <algorithm>
#include <set>

namespace galley {
namespace {

/// Whether each value depends on fed inputs.
std::vector<bool> fed_values(const Graph& graph) {
  std::vector<bool> fed(graph.value_count());
  for (ValueId id : graph.inputs()) fed[static_cast<size_t>(id)] = graph.value(id).role == ValueRole::kInput;
  for (const Node& node : graph.nodes()) {
    const bool depends =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id != kNoValue && fed[static_cast<size_t>(id)]; });
    for (ValueId id : node.outputs) fed[static_cast<size_t>(id)] = depends;
  }
  return fed;
}

}  // namespace

std::vector<std::string> quant_names(const Graph& graph) {
  const std::vector<bool> fed = fed_values(graph);
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  std::set<std::string> taken;
  for (const Node& node : graph.nodes()) {
    // Nodes that depend only on parameters are not named: a compiled program computes them beforehand.
    if (node.phase != Phase::kForward || node.outputs.empty() || !fed[static_cast<size_t>(node.outputs[0])] || node.is("reorder")) {
      names.emplace_back();
      continue;
    }
    // A convolution has the same name for every operator that computes it.
    const std::string op(node.is("winograd_conv2d") ? "conv2d" : node.op->name);
    const bool module = (op == "conv2d" || op == "linear") && !node.path.empty();
    const std::string base = module ? node.path : node.path.empty() ? op : cat(node.path, ".", op);
    int& count = seen[base];
    std::string name;
    do {
      ++count;
      name = count == 1 ? base : cat(base, ".", count);
    } while (!taken.insert(name).second);
    names.push_back(std::move(name));
  }
  return names;
}

std::string quant_name(const Graph& graph, const Node& node) {
  const std::vector<std::string> names = quant_names(graph);
  for (size_t i = 0; i < names.size(); ++i) {
    if (&graph.nodes()[i] == &node) return names[i];
  }
  GALLEY_ASSERT(false, "node ", node.op->name, " at ", node.path, " is not of this graph");
}

std::map<ValueId, std::string> quant_values(const Graph& graph) {
  std::map<ValueId, std::string> values;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kInput && info.type.dtype == DType::kF32) values.emplace(id, info.name);
  }
  const std::vector<std::string> names = quant_names(graph);
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (!names[i].empty() && graph.type(node.outputs[0]).dtype == DType::kF32) values.emplace(node.outputs[0], names[i]);
  }
  return values;
}

}  // namespace galley
