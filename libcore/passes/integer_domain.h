#pragma once
// Which operators of a graph run on integers, and which values are integers: the analysis that plan and conversion of passes/quantize.h
// share.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"

namespace galley {

class IntegerDomain {
 public:
  /// `in_float`: whether the layer of that name stays in float. Dead nodes must have been removed.
  IntegerDomain(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  /// How the node could run on integers: the rule of its operator where its operands and readers allow it, else kFloat.
  QuantizeRule rule(size_t node) const { return rules_[node]; }
  /// Does the node depend on parameters alone?
  bool constant(size_t node) const { return constant_[node]; }
  /// Does the node compute on integers?
  bool integer(size_t node) const { return integer_[node]; }
  /// Name of the layer's tensors; "" for nodes that are no layers.
  const std::string& layer(size_t node) const { return layers_[node]; }
  /// Names of the weights of a recurrent node, the input's and the state's: its layers. Empty for other nodes.
  const std::vector<std::string>& recurrent_layers(size_t node) const { return recurrent_layers_[node]; }
  /// All layers of a node: none, one or two.
  std::vector<std::string> layers(size_t node) const {
    return layers_[node].empty() ? recurrent_layers_[node] : std::vector<std::string>{layers_[node]};
  }
  /// Some operator on integers reads the value as one.
  bool wanted(ValueId id) const { return wanted_[static_cast<size_t>(id)]; }
  /// A node makes the value as integers.
  bool made_integer(ValueId id) const { return made_integer_[static_cast<size_t>(id)]; }
  /// The value whose map this integer value has: itself, or what the operators that pass integers on began with.
  ValueId map_of(ValueId id) const { return root_[static_cast<size_t>(id)]; }
  /// The value whose statistics count for this one: those of a view are its input's, since calibration watches memory.
  ValueId watched(const Graph& graph, ValueId id) const;
  /// quant_name of a value that depends on what is fed; "" for others.
  const std::string& name(ValueId id) const { return names_[static_cast<size_t>(id)]; }
  /// Which inputs the node reads as integers where it runs on them.
  static std::vector<size_t> integer_inputs(const Node& node) { return inputs_of(node, PortKind::kActivation); }
  const std::vector<int>& producers() const { return producers_; }

 private:
  void classify(const Graph& graph);
  /// Names of the layers that the node is; none where they have no names of their own.
  bool name_layers(const Graph& graph, size_t n, const std::vector<std::string>& names, std::set<std::string>& taken);
  void decide(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  std::vector<int> producers_;
  std::vector<std::string> names_;   // by value
  std::vector<QuantizeRule> rules_;  // by node
  std::vector<bool> constant_;       // by node
  std::vector<std::string> layers_;  // by node
  std::vector<std::vector<std::string>> recurrent_layers_;
  std::vector<bool> integer_, wanted_, made_integer_;
  std::vector<ValueId> root_;
};

/// What recipes, files and reports call the layer: "conv2d", "linear", "batch_norm", "lstm".
inline std::string layer_type(const Node& node) { return std::string(family_of(*node.op).name); }

/// Why layers stay in float, by their names; the others are quantized. Throws (kRecipe) naming every layer without a kernel for its scheme
/// where fallback is kError. The graph has no dead nodes.
std::map<std::string, std::string> layers_in_float(const Graph& graph, const QuantizeConfig& config);

}  // namespace galley
