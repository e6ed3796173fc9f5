#include "libcore/infer/captured_model.h"

#include <set>

#include "libcore/base/error.h"
#include "libcore/base/glob.h"

namespace galley {

std::vector<Selectable> selectables(const std::vector<ParameterSpec>& parameters) {
  std::vector<Selectable> items;
  for (const ParameterSpec& spec : parameters) items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
  return items;
}

DType dtype_in_files(const ParameterSpec& spec) {
  const DType dtype = spec.type.dtype;
  const bool narrow = spec.role == ValueRole::kBuffer && (dtype == DType::kBF16 || dtype == DType::kF16);
  return narrow ? DType::kF32 : dtype;
}

PrecisionPolicy precision_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters) {
  PrecisionPolicy policy;
  if (recipe.precision.compute == PrecisionName::kF32) return policy;
  policy.compute = recipe.precision.compute == PrecisionName::kF16 ? DType::kF16 : DType::kBF16;
  policy.biases = recipe.device.is_gpu();
  Selector selector{recipe.precision.keep_f32, {}};
  Selector given = selector;  // without the default type:norm, which need not match anything
  std::erase(given.match, "type:norm");
  if (!given.match.empty()) given.select(selectables(parameters), "precision.keep_f32", true);
  policy.keep_f32 = [selector](const Node& node) { return selector.selects({node.path, std::string(node.op->name), 0}); };
  return policy;
}

std::map<std::string, ValueId> module_results(const Graph& graph) {
  std::map<std::string, ValueId> results;
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::kForward || node.outputs.empty()) continue;
    for (size_t end = node.path.size(); end != std::string::npos && end > 0; end = node.path.rfind('.', end - 1))
      results[node.path.substr(0, end)] = node.outputs[0];
  }
  return results;
}

void add_captured_outputs(Graph& graph, const std::vector<std::string>& capture) {
  const std::map<std::string, ValueId> results = module_results(graph);
  std::set<std::string> captured;
  for (const std::string& pattern : capture) {
    bool any = false;
    for (const auto& [path, value] : results) {
      if (!glob_matches(pattern, path)) continue;
      any = true;
      if (captured.insert(path).second) graph.add_output(path, value);
    }
    if (any) continue;
    std::vector<std::string> paths;
    for (const auto& [path, value] : results) paths.push_back(path);
    const std::string near = nearest(pattern, paths);
    throw Error(ErrorCode::kUsage, cat("--capture '", pattern, "' matches none of the ", paths.size(), " modules"))
        .suggest(near.empty() ? (paths.empty() ? "" : cat("paths have the form '", paths.front(), "'"))
                              : cat("did you mean '", near, "'?"));
  }
}

}  // namespace galley
