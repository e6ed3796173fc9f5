#pragma once
// The table of patterns that `fuse` looks for: operators that take an activation, and some a residual, into themselves. The same for every back end.

#include <span>
#include <string_view>

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
};

/// Operators of training graphs, and of inference graphs.
std::span<const FusionPattern> training_patterns();
std::span<const FusionPattern> inference_patterns();

/// Is it the sum of two values of one shape, one of which can become a residual?
bool is_residual_sum(const Graph& graph, const Node& node);

}  // namespace galley
