#pragma once
// Patterns of neighbours that rewrites look for: operators that take an activation, a residual or a batch norm into themselves, and batch
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
  int residual = -1;  ///< The input that is added to the result before the activation; -1: there is none.
  Activation (*activation)(const Node& node) = nullptr;                        ///< That of a node.
  Node (*with_activation)(const Node& node, Activation activation) = nullptr;  ///< The node with that one.
  bool (*takes)(Activation activation) = nullptr;                              ///< nullptr: all of them.
  bool residual_with_relu_only = false;
  bool batch_norm = false;  ///< In inference a batch norm of the result goes into weight and bias.
  int channel_axis = 1;     ///< The dimension of the result that the weight's rows make; -1: the last one.
};

/// Operators of training graphs, and of inference graphs.
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
  bool frozen = false;  ///< Computes with the running statistics; else with those of the batch.
};
/// The batch norms of a graph, with the updates that keep their running statistics.
class BatchNorms {
 public:
  explicit BatchNorms(const Graph& graph);
  /// The batch norm that makes the node's output 0; nothing where the node is another operator.
  std::optional<BatchNormPattern> match(const Node& node) const;
  /// Does the node change running statistics?
  static bool updates(const Node& node);
  /// The node computing with the running statistics; throws InternalError where the norm was fused with others or has none.
  Node frozen(const Node& node) const;

 private:
  std::map<ValueId, std::pair<ValueId, ValueId>> running_;  // mean and variance, by the batch's mean
};

/// Is it the sum of two values of one shape, one of which can become a residual?
bool is_residual_sum(const Graph& graph, const Node& node);

}  // namespace galley
