#include "libcore/passes/integer_domain.h"

#include <algorithm>

#include "libcore/ops/embedding.h"
#include "libcore/quant/names.h"

namespace galley {
namespace {

/// 5 for "attn.reshape.5" and the stem "attn.reshape", 1 for the stem itself, 0 for other names.
int64_t number_after(std::string_view name, std::string_view stem) {
  if (name == stem) return 1;
  if (!name.starts_with(stem) || name.size() < stem.size() + 2 || name[stem.size()] != '.') return 0;
  int64_t number = 0;
  for (const char c : name.substr(stem.size() + 1)) {
    if (c < '0' || c > '9' || number > 1'000'000) return 0;
    number = 10 * number + (c - '0');
  }
  return number;
}

/// The layer of a table called "L.weight"; "" for other values.
std::string table_name(const ValueInfo& table) {
  constexpr std::string_view kWeight = ".weight";
  const bool named = table.role == ValueRole::kParameter && table.type.dtype == DType::kF32 && table.name.ends_with(kWeight);
  return named ? table.name.substr(0, table.name.size() - kWeight.size()) : "";
}

}  // namespace

std::map<std::string, QuantParams> planned_values(const Graph& graph, const IntegerDomain& domain, const QuantizationPlan& plan) {
  std::map<std::string, QuantParams> values;
  std::map<std::string, std::map<int64_t, std::string>> numbered;  // by stem, of operators of which a name is missing or not
  for (size_t v = 0; v < graph.value_count(); ++v) {
    const auto id = static_cast<ValueId>(v);
    if (!domain.wanted(id)) continue;
    const std::string& name = domain.name(domain.map_of(id));
    if (const auto found = plan.values.find(name); found != plan.values.end()) values.emplace(name, found->second);
    const int producer = domain.producers()[static_cast<size_t>(domain.map_of(id))];
    if (producer < 0) continue;
    const Node& node = graph.nodes()[static_cast<size_t>(producer)];
    const std::string stem = cat(node.path, ".", node.op->name);
    if (const int64_t number = number_after(name, stem); number > 0) numbered[stem][number] = name;
  }
  for (const auto& [stem, names] : numbered) {
    if (std::all_of(names.begin(), names.end(), [&](const auto& item) { return values.contains(item.second); })) continue;
    std::map<int64_t, const QuantParams*> planned;
    for (const auto& [name, params] : plan.values) {
      if (const int64_t number = number_after(name, stem); number > 0) planned[number] = &params;
    }
    if (planned.size() != names.size()) continue;
    auto next = planned.begin();
    for (const auto& [number, name] : names) values[name] = *(next++)->second;
  }
  return values;
}

IntegerDomain::IntegerDomain(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float)
    : producers_(graph.producers()),
      watched_(range_sources(graph)),
      names_(graph.value_count()),
      rules_(graph.nodes().size(), QuantizeRule::kFloat),
      constant_(graph.nodes().size()),
      layers_(graph.nodes().size()),
      tables_(graph.nodes().size()),
      recurrent_layers_(graph.nodes().size()),
      integer_(graph.nodes().size()),
      wanted_(graph.value_count()),
      made_integer_(graph.value_count()),
      root_(graph.value_count()) {
  for (const auto& [id, name] : quant_values(graph)) names_[static_cast<size_t>(id)] = name;
  classify(graph);
  decide(graph, in_float);
}

void IntegerDomain::classify(const Graph& graph) {
  std::vector<bool> fed(graph.value_count());
  for (ValueId id : graph.inputs()) {
    const ValueRole role = graph.value(id).role;
    fed[static_cast<size_t>(id)] = role == ValueRole::kInput || role == ValueRole::kCarried;
  }
  const std::vector<std::vector<int>> users = graph.users();
  std::set<ValueId> outputs;
  for (const auto& [name, id] : graph.outputs()) outputs.insert(id);
  const std::vector<std::string> names = quant_names(graph);
  std::set<std::string> taken;
  const auto real = [&](ValueId id) { return id != kNoValue && fed[static_cast<size_t>(id)] && graph.type(id).dtype == DType::kF32; };
  const auto constant = [&](ValueId id) { return id == kNoValue || !fed[static_cast<size_t>(id)]; };
  // Whether activations are real and not constant, and all other operands are constant.
  const auto operands_fit = [&](const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const PortKind kind = node.op->input_port(i).kind;
      if (kind == PortKind::kIndex) continue;  // stays as it is
      if (kind == PortKind::kActivation ? !real(node.inputs[i]) : !constant(node.inputs[i])) return false;
      if (kind == PortKind::kWeight && graph.type(node.inputs[i]).dtype != DType::kF32) return false;
    }
    return true;
  };
  const auto unused = [&](ValueId id) { return users[static_cast<size_t>(id)].empty() && outputs.count(id) == 0; };

  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    constant_[n] = std::all_of(node.inputs.begin(), node.inputs.end(), constant);
    if (constant_[n]) continue;
    for (ValueId id : node.outputs) fed[static_cast<size_t>(id)] = true;
    if (selects_rows(*node.op)) tables_[n] = table_name(graph.value(node.inputs[0]));
    const QuantizeRule rule = node.op->quantize;
    if (rule == QuantizeRule::kFloat || node.outputs.empty() || !real(node.outputs[0]) || !real(node.inputs[0])) continue;
    if (node.op->quantizable != nullptr && !node.op->quantizable(context_of(graph, node))) continue;
    // Only the products of a recurrent layer are computed on integers, so its states may be any values.
    if (rule != QuantizeRule::kRecurrent && !operands_fit(node)) continue;
    // Indices of maxima are needed by backward passes and unpooling, which have no integer form.
    if (rule == QuantizeRule::kPassThrough && !std::all_of(node.outputs.begin() + 1, node.outputs.end(), unused)) continue;
    if (name_layers(graph, n, names, taken)) rules_[n] = rule;
  }
}

bool IntegerDomain::name_layers(const Graph& graph, size_t n, const std::vector<std::string>& names, std::set<std::string>& taken) {
  const Node& node = graph.nodes()[n];
  switch (node.op->quantize) {
    case QuantizeRule::kProduct:
      layers_[n] = names[n];
      taken.insert(names[n]);
      return true;
    case QuantizeRule::kScale:
      if (node.path.empty()) return false;
      layers_[n] = taken.insert(node.path).second ? node.path : names[n];
      return true;
    case QuantizeRule::kRecurrent: {
      // A weight that is computed, or has several readers, cannot be stored under its own name.
      std::vector<std::string> weights;
      for (const size_t i : inputs_of(node, PortKind::kWeight)) {
        const ValueInfo& info = graph.value(node.inputs[i]);
        const auto reads = [&](const Node& reader) { return std::count(reader.inputs.begin(), reader.inputs.end(), node.inputs[i]); };
        int64_t readers = 0;
        for (const Node& reader : graph.nodes()) readers += reads(reader);
        if (info.role != ValueRole::kParameter || info.type.dtype != DType::kF32 || readers != 1) return false;
        weights.push_back(info.name);
      }
      recurrent_layers_[n] = std::move(weights);
      return true;
    }
    default: return true;
  }
}

void IntegerDomain::decide(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float) {
  const std::deque<Node>& nodes = graph.nodes();
  const auto at = [](ValueId id) { return static_cast<size_t>(id); };
  std::vector<bool> may(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    may[n] = rules_[n] != QuantizeRule::kFloat && rules_[n] != QuantizeRule::kRecurrent && (layers_[n].empty() || !in_float(layers_[n]));
  }
  // Values that readers would read as integers if all their inputs were available.
  std::vector<bool> asked(graph.value_count());
  for (size_t n = nodes.size(); n-- > 0;) {
    if (!may[n] || (rules_[n] != QuantizeRule::kProduct && !asked[at(nodes[n].outputs[0])])) continue;
    for (size_t i : integer_inputs(nodes[n])) asked[at(nodes[n].inputs[i])] = true;
  }
  // A fed value is quantized if a reader needs integers. Other values are integers if the node that computes them can output integers.
  std::vector<bool> available(graph.value_count());
  for (ValueId id : graph.inputs()) available[at(id)] = asked[at(id)];
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!may[n]) continue;
    const ValueId y = nodes[n].outputs[0];
    if (rules_[n] == QuantizeRule::kProduct) {
      integer_[n] = true;
    } else {
      const std::vector<size_t> inputs = integer_inputs(nodes[n]);
      integer_[n] = asked[at(y)] && std::any_of(inputs.begin(), inputs.end(), [&](size_t i) { return available[at(nodes[n].inputs[i])]; });
    }
    available[at(y)] = integer_[n] && asked[at(y)];
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!integer_[n]) continue;
    for (size_t i : integer_inputs(nodes[n])) wanted_[at(nodes[n].inputs[i])] = true;
  }
  for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<ValueId>(v);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ValueId y = nodes[n].outputs.empty() ? kNoValue : nodes[n].outputs[0];
    if (!integer_[n] || !wanted_[at(y)]) continue;
    made_integer_[at(y)] = true;
    if (rules_[n] == QuantizeRule::kPassThrough) root_[at(y)] = root_[at(nodes[n].inputs[0])];
  }
}

}  // namespace galley
