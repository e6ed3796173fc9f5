#pragma once
// Patterns of neighboring operators for fusion: operators that can apply an activation, add a residual or absorb a batch norm, and batch
// norms with their running statistics. The same for every back end.

#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "libcore/graph/graph.h"
#include "libcore/ops/attrs.h"

namespace galley {

struct FusionPattern {
  std::string_view op;
  int residual = -1;                                     ///< The input that is added to the result before the activation; -1: none.
  Activation (*activation)(const Node& node) = nullptr;  ///< The activation of a node.
  Node (*with_activation)(const Node& node, Activation activation) = nullptr;  ///< The node with that activation.
  bool (*takes)(Activation activation) = nullptr;                              ///< Activations that it can apply; nullptr: all.
  bool residual_with_relu_only = false;
  bool batch_norm = false;  ///< Weight and bias can absorb a batch norm in inference.
  int channel_axis = 1;     ///< The dimension of the result that corresponds to the rows of the weight; -1: the last.
};

/// Patterns of training graphs and of inference graphs.
std::span<const FusionPattern> training_patterns();
std::span<const FusionPattern> inference_patterns();

/// The row of the node's operator, or nullptr.
const FusionPattern* find_pattern(std::span<const FusionPattern> patterns, const Node& node);

/// A batch norm that uses its running statistics, or will after training. Absent inputs are kNoValue.
struct BatchNormPattern {
  ValueId x = kNoValue, gamma = kNoValue, beta = kNoValue;
  ValueId mean = kNoValue, var = kNoValue;  ///< The running statistics.
  double eps = 0;
  Activation activation = Activation::kNone;
  bool frozen = false;  ///< Uses the running statistics; false: those of the batch.
};
/// The batch norms of a graph, with the updates that keep their running statistics.
class BatchNorms {
 public:
  explicit BatchNorms(const Graph& graph);
  /// The batch norm that the node is; nullopt for other operators.
  std::optional<BatchNormPattern> match(const Node& node) const;
  /// Does the node change running statistics?
  static bool updates(const Node& node);
  /// The node with its running statistics instead of those of the batch. Throws InternalError if it was fused or has none.
  Node frozen(const Node& node) const;

 private:
  std::map<ValueId, std::pair<ValueId, ValueId>> running_;  // mean and variance, by the batch's mean
};

/// Is it the sum of two values of one shape, so that one of them can become a residual?
bool is_residual_sum(const Graph& graph, const Node& node);

}  // namespace galley
