#pragma once
// Activation checkpointing: the backward pass runs forward nodes again, so that their results need not be kept.

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Is the result of this forward node recomputed instead of kept?
using RecomputeChoice = std::function<bool(const Node& node)>;

/// Recomputes element-wise functions, norms and pooling, from the results of convolutions and matrix products, which are kept.
RecomputeChoice recompute_selective();
/// Keeps about sqrt(n) values, evenly spaced by size, through which the whole forward pass goes (Chen et al. 2016, "Training deep nets with
/// sublinear memory cost"), and recomputes the others.
RecomputeChoice recompute_full(const Graph& graph);

/// Runs after `differentiate`: backward and update nodes that read a value of a chosen forward node read the value of a copy instead, which
/// is inserted before its first reader (Phase::kBackward, the same path). Outputs of the graph are kept. Random nodes draw the same
/// numbers.
PassReport recompute(Graph& graph, const RecomputeChoice& choice);

}  // namespace galley
