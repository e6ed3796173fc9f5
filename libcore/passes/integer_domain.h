#pragma once
// Analysis of which operators of a graph run on integers, and which values are integers. The plan and the conversion of passes/quantize.h
// share it.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/passes/quantization_plan.h"
#include "libcore/quant/config.h"

namespace galley {

class IntegerDomain {
 public:
  /// `in_float`: does the layer of that name stay in float? The graph must not have dead nodes.
  IntegerDomain(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  /// How the node can run on integers: the rule of its operator if its operands and readers allow it, else kFloat.
  QuantizeRule rule(size_t node) const { return rules_[node]; }
  /// Does the node depend on parameters only?
  bool constant(size_t node) const { return constant_[node]; }
  /// Does the node compute on integers?
  bool integer(size_t node) const { return integer_[node]; }
  /// Name of the layer, for its tensors; "" for nodes that are not layers.
  const std::string& layer(size_t node) const { return layers_[node]; }
  /// The layers of a recurrent node: the names of its weights, input first, then state. Empty for other nodes.
  const std::vector<std::string>& recurrent_layers(size_t node) const { return recurrent_layers_[node]; }
  /// All layers of a node: none, one or two.
  std::vector<std::string> layers(size_t node) const {
    return layers_[node].empty() ? recurrent_layers_[node] : std::vector<std::string>{layers_[node]};
  }
  /// A node that selects rows of a table, a parameter: the name of its layer; "" for others. A plan may store the table in integers.
  const std::string& table(size_t node) const { return tables_[node]; }
  /// Does an operator on integers read the value?
  bool wanted(ValueId id) const { return wanted_[static_cast<size_t>(id)]; }
  /// Does a node compute the value as integers?
  bool made_integer(ValueId id) const { return made_integer_[static_cast<size_t>(id)]; }
  /// The value whose scale and zero point this integer value has: itself, or the first input of the operators that pass integers on.
  ValueId map_of(ValueId id) const { return root_[static_cast<size_t>(id)]; }
  /// The value whose statistics are used for this one, by range_sources.
  ValueId watched(ValueId id) const { return watched_[static_cast<size_t>(id)]; }
  /// quant_name of a value that depends on fed inputs; "" for others.
  const std::string& name(ValueId id) const { return names_[static_cast<size_t>(id)]; }
  /// The inputs that the node reads as integers if it runs on integers.
  static std::vector<size_t> integer_inputs(const Node& node) { return inputs_of(node, PortKind::kActivation); }
  const std::vector<int>& producers() const { return producers_; }

 private:
  void classify(const Graph& graph);
  /// Names of the layers that the node is; none where they have no names of their own.
  bool name_layers(const Graph& graph, size_t n, const std::vector<std::string>& names, std::set<std::string>& taken);
  void decide(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  std::vector<int> producers_;
  std::vector<ValueId> watched_;
  std::vector<std::string> names_;   // by value
  std::vector<QuantizeRule> rules_;  // by node
  std::vector<bool> constant_;       // by node
  std::vector<std::string> layers_;  // by node
  std::vector<std::string> tables_;  // by node
  std::vector<std::vector<std::string>> recurrent_layers_;
  std::vector<bool> integer_, wanted_, made_integer_;
  std::vector<ValueId> root_;
};

/// The scale and zero point of every integer value, by its name in this graph; what the plan lacks is absent. A version of the model that
/// made a plan may have numbered the results of an operator of a module differently ("attn.reshape.5" for "attn.reshape.2"): where their
/// count is the same, they correspond in order.
std::map<std::string, QuantParams> planned_values(const Graph& graph, const IntegerDomain& domain, const QuantizationPlan& plan);

/// The type of the layer in recipes, files and reports: "conv2d", "linear", "batch_norm", "lstm".
inline std::string layer_type(const Node& node) { return std::string(family_of(*node.op).name); }

/// The layers that stay in float, by name, with the reason; the others are quantized. With fallback kError, throws (kRecipe) if the scheme
/// of a layer has no kernel, and names all such layers. The graph must not have dead nodes.
std::map<std::string, std::string> layers_in_float(const Graph& graph, const QuantizeConfig& config);

}  // namespace galley
