#pragma once
// Which operators of a graph run on integers, and which values are integers: the analysis that plan and conversion of passes/quantize.h share.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/quant/config.h"

namespace galley {

/// How an operator could run on integers.
enum class IntegerForm : uint8_t {
  kNone,
  kConstant,     // depends on parameters alone
  kProduct,      // conv2d, linear: a layer
  kScale,        // batch_norm_inference of rank 4: a layer, but only where both sides are integers
  kOwnMap,       // add, mul, concat, average pools, mean over pixels
  kPassThrough,  // moves integers unchanged
  kTable,        // a function of one value
  kRecurrent,    // lstm, gru, rnn: two layers, never on integers that others read
};

class IntegerDomain {
 public:
  /// `in_float`: whether the layer of that name stays in float. Dead nodes must have been removed.
  IntegerDomain(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  IntegerForm form(size_t node) const { return forms_[node]; }
  /// Does the node compute on integers?
  bool integer(size_t node) const { return integer_[node]; }
  /// Name of the layer's tensors; "" for nodes that are no layers.
  const std::string& layer(size_t node) const { return layers_[node]; }
  /// Names of the weights of a recurrent node, the input's and the state's: its layers. Empty for other nodes.
  const std::vector<std::string>& recurrent_layers(size_t node) const { return recurrent_layers_[node]; }
  /// All layers of a node: none, one or two.
  std::vector<std::string> layers(size_t node) const { return layers_[node].empty() ? recurrent_layers_[node] : std::vector<std::string>{layers_[node]}; }
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
  std::vector<size_t> integer_inputs(const Node& node) const;
  const std::vector<int>& producers() const { return producers_; }

 private:
  void classify(const Graph& graph);
  void decide(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float);

  std::vector<int> producers_;
  std::vector<std::string> names_;   // by value
  std::vector<IntegerForm> forms_;   // by node
  std::vector<std::string> layers_;  // by node
  std::vector<std::vector<std::string>> recurrent_layers_;
  std::vector<bool> integer_, wanted_, made_integer_;
  std::vector<ValueId> root_;
};

/// "conv2d", "linear", "batch_norm", "lstm"
std::string layer_type(const Node& node);

/// Why layers stay in float, by their names; the others are quantized. Throws (kRecipe) naming every layer without a kernel for its scheme where
/// fallback is kError. The graph has no dead nodes.
std::map<std::string, std::string> layers_in_float(const Graph& graph, const QuantizeConfig& config);

}  // namespace galley
