#include "libcore/quant/names.h"

#include <algorithm>
#include <set>

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

std::map<ValueId, std::string> watched_values(const Graph& graph) {
  std::map<ValueId, std::string> values = quant_values(graph);
  for (const Node& node : graph.nodes()) {
    if (node.op->view()) values.erase(node.outputs[0]);
  }
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

std::optional<std::map<std::string, std::string>> former_names(const Graph& graph, std::span<const std::string> former) {
  const std::map<ValueId, std::string> values = watched_values(graph);
  std::map<std::string, std::string> modules;  // by the name of the result of attention
  for (const Node& node : graph.nodes()) {
    if (node.is("attention") && values.contains(node.outputs[0])) modules.emplace(values.at(node.outputs[0]), node.path);
  }
  if (modules.empty()) return std::nullopt;
  const auto same_part = [&](const std::string& now, const std::string& before) {
    return now == before || std::any_of(modules.begin(), modules.end(), [&](const auto& item) {
             const std::optional<std::string_view> part = part_of(item.second, now);
             return part && part == part_of(item.second, before);
           });
  };
  // How many of the next names are of the module.
  const auto count = [](const std::string& module, std::span<const std::string> names) {
    return std::find_if_not(names.begin(), names.end(), [&](const std::string& name) { return part_of(module, name).has_value(); }) -
           names.begin();
  };

  const std::vector<std::string> names = watched_names(graph);
  std::map<std::string, std::string> found;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const auto attention = modules.find(names[i]); attention != modules.end()) {
      const auto parts = count(attention->second, former) - count(attention->second, std::span(names).subspan(i + 1));
      if (parts < 1) return std::nullopt;
      former = former.subspan(static_cast<size_t>(parts - 1));
      // The last of them put the heads of a token side by side.
      if (part_of(attention->second, former.front()) != "permute") return std::nullopt;
    } else if (former.empty() || !same_part(names[i], former.front())) {
      return std::nullopt;
    }
    found.emplace(names[i], former.front());
    former = former.subspan(1);
  }
  return former.empty() ? std::optional(found) : std::nullopt;
}

}  // namespace galley
