#include "libcore/quant/names.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "libcore/ops/extents.h"

namespace galley {
namespace {

/// Whether each value depends on inputs that are fed or carried.
std::vector<bool> fed_values(const Graph& graph) {
  std::vector<bool> fed(graph.value_count());
  for (ValueId id : graph.inputs()) {
    const ValueRole role = graph.value(id).role;
    fed[static_cast<size_t>(id)] = role == ValueRole::kInput || role == ValueRole::kCarried;
  }
  for (const Node& node : graph.nodes()) {
    const bool depends =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id != kNoValue && fed[static_cast<size_t>(id)]; });
    for (ValueId id : node.outputs) fed[static_cast<size_t>(id)] = depends;
  }
  return fed;
}

/// What a value is in a module: "permute" for "attn.permute.2" in "attn", "" for the module's own products ("attn", "attn.2"). nullopt: it
/// is not of the module.
std::optional<std::string_view> part_of(std::string_view module, std::string_view name) {
  if (module.empty() || !name.starts_with(module)) return std::nullopt;
  name.remove_prefix(module.size());
  if (name.empty()) return name;
  if (name.front() != '.') return std::nullopt;
  const size_t dot = name.rfind('.');
  const bool numbered = name.find_first_not_of("0123456789", dot + 1) == std::string_view::npos;
  name = numbered ? name.substr(0, dot) : name;
  return name.substr(std::min<size_t>(name.size(), 1));
}

/// Names that the values of a module with attention had before 2026-11-25, when attention was: permute (the heads of queries, keys and
/// values), three slices, products and sums, softmax, permute. Given the module's values in order.
class FormerModule {
 public:
  /// The result of attention: the second of these permutes.
  std::string result(const std::string& module) {
    inside_ = false;
    past_ = true;
    return numbered(module, "permute", outside_["permute"] + 2);
  }
  /// Another value. nullopt: it is a part of attention, or was named otherwise.
  std::optional<std::string> name(const std::string& module, const std::string& now) {
    const std::string part(*part_of(module, now));
    if (inside_) return std::nullopt;
    inside_ = part.empty() && !past_;  // after the projection of queries, keys and values
    const int count = ++outside_[part];
    if (!past_ || part.empty()) return now;
    if (part == "permute") return numbered(module, part, count + 2);
    if (part == "slice") return numbered(module, part, count + 3);
    return part == "add" ? std::nullopt : std::optional(now);
  }

 private:
  static std::string numbered(const std::string& module, const std::string& part, int number) {
    return number == 1 ? cat(module, ".", part) : cat(module, ".", part, ".", number);
  }
  bool inside_ = false, past_ = false;
  std::map<std::string, int> outside_;  // values by part, but those inside attention
};

}  // namespace

std::vector<std::string> quant_names(const Graph& graph) {
  const std::vector<bool> fed = fed_values(graph);
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  std::set<std::string> taken;
  for (const Node& node : graph.nodes()) {
    // Nodes that depend only on parameters are not named: a compiled program computes them beforehand.
    if (node.phase != Phase::kForward || node.outputs.empty() || !fed[static_cast<size_t>(node.outputs[0])] ||
        node.op->layout.formats == FormatRule::kReorder) {
      names.emplace_back();
      continue;
    }
    // A product has the same name for every operator that computes it.
    const bool product = family_of(*node.op).quantize == QuantizeRule::kProduct;
    const std::string op(product ? family_of(*node.op).name : node.op->name);
    const std::string base = node.path.empty() ? op : product ? node.path : cat(node.path, ".", op);
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

std::vector<ValueId> range_sources(const Graph& graph) {
  std::vector<ValueId> sources(graph.value_count());
  std::vector<bool> infinite(sources.size());
  for (size_t v = 0; v < sources.size(); ++v) sources[v] = static_cast<ValueId>(v);
  for (const Node& node : graph.nodes()) {
    if (node.inputs.empty() || node.inputs[0] == kNoValue || node.outputs.empty()) continue;
    const auto input = static_cast<size_t>(node.inputs[0]), output = static_cast<size_t>(node.outputs[0]);
    const bool fills = node.op == &fill_outside_op(), moves = node.op->quantize == QuantizeRule::kPassThrough;
    infinite[output] = fills ? std::isinf(node.attrs<FillOutsideAttrs>().value) : moves && infinite[input];
    if (infinite[output] || node.op->view()) sources[output] = sources[input];
  }
  return sources;
}

std::map<ValueId, std::string> watched_values(const Graph& graph) {
  std::map<ValueId, std::string> values = quant_values(graph);
  const std::vector<ValueId> sources = range_sources(graph);
  std::erase_if(values, [&](const auto& value) { return sources[static_cast<size_t>(value.first)] != value.first; });
  return values;
}

std::vector<std::string> watched_names(const Graph& graph) {
  const std::map<ValueId, std::string> values = watched_values(graph);
  std::vector<std::string> names;
  for (ValueId id : graph.inputs()) {
    if (const auto found = values.find(id); found != values.end()) names.push_back(found->second);
  }
  for (const Node& node : graph.nodes()) {
    if (const auto found = node.outputs.empty() ? values.end() : values.find(node.outputs[0]); found != values.end())
      names.push_back(found->second);
  }
  return names;
}

std::map<std::string, std::string> former_names(const Graph& graph, std::span<const std::string> former) {
  const std::map<ValueId, std::string> values = watched_values(graph);
  std::map<std::string, FormerModule> modules;   // by path
  std::map<std::string, std::string> attention;  // the path of the module, by the name of the result
  for (const Node& node : graph.nodes()) {
    if (!node.op->named_by_parts || node.path.empty() || !values.contains(node.outputs[0])) continue;
    modules[node.path];
    attention.emplace(values.at(node.outputs[0]), node.path);
  }
  const auto module_of = [&](const std::string& name) {
    return std::find_if(modules.begin(), modules.end(), [&](const auto& item) { return part_of(item.first, name).has_value(); });
  };
  std::map<std::string, std::string> found;
  std::set<std::string_view> known;
  const std::vector<std::string> names = watched_names(graph);
  for (const std::string& name : names) {
    const auto result = attention.find(name);
    const auto module = result != attention.end() ? modules.find(result->second) : module_of(name);
    std::optional<std::string> before = name;
    if (result != attention.end()) {
      before = module->second.result(module->first);
    } else if (module != modules.end()) {
      before = module->second.name(module->first, name);
    }
    if (before) known.insert(found.emplace(name, *before).first->second);
  }
  // All other values must be of the modules: parts of what is attention now, which the file does not know.
  const bool same_model = !modules.empty() && std::all_of(former.begin(), former.end(), [&](const std::string& name) {
    return known.contains(name) || (module_of(name) != modules.end() && !attention.contains(name));
  });
  return same_model ? found : std::map<std::string, std::string>();
}

}  // namespace galley
