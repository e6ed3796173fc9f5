#pragma once
// Activation checkpointing: forward nodes are run again in the backward, so that their results need not be kept.

#include <functional>
#include <string_view>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

struct RecomputeOptions {
  /// Is this forward node cheap or unwanted enough to be run again? kSelective and kFull of the recipe are the functions below.
  std::function<bool(const Graph& graph, const Node& node)> again;
};
/// All but convolutions and matrix products (and what they need none of): element-wise, norms, pooling.
bool recompute_selective(const Graph& graph, const Node& node);
/// All but random state, losses and updates: only the model's inputs stay.
bool recompute_full(const Graph& graph, const Node& node);

/// After `differentiate` and the updates: backward nodes that read a value of a chosen forward node read a clone instead, made right
/// before its first reader (Phase::kBackward, same path). Parameters that a clone reads are updated after it.
PassReport recompute(Graph& graph, const RecomputeOptions& options);

}  // namespace galley
