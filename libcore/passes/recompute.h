#pragma once
// Activation checkpointing: forward nodes are run again in the backward, so that their results need not be kept.

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Is the result of this forward node not kept, but computed again?
using RecomputeChoice = std::function<bool(const Node& node)>;

/// All but convolutions and matrix products: element-wise functions, norms, pooling, from the products that are kept.
RecomputeChoice recompute_selective();
/// All but about sqrt(n) values that the whole forward pass goes through, evenly spaced by size (Chen et al. 2016, "Training deep nets with
/// sublinear memory cost").
RecomputeChoice recompute_full(const Graph& graph);

/// After `differentiate`: backward and update nodes that read a value of a chosen forward node read a clone instead, made right before its
/// first reader (Phase::kBackward, the same path). What is an output of the graph is kept. Random nodes draw the same numbers again.
PassReport recompute(Graph& graph, const RecomputeChoice& choice);

}  // namespace galley
