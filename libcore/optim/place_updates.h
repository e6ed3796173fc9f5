#pragma once
// Where update nodes stand in the order of nodes.

#include "libcore/graph/graph.h"

namespace galley {

/// Moves every node of phase kUpdate to the earliest place that the laws allow, so that a gradient dies at its update: after the
/// nodes that make its inputs, after every other reader of a value that it overwrites, and after all forward nodes (the loss is
/// tested before anything is updated). The order of the other nodes stays. To be called after the last pass that adds readers of
/// parameters (recompute).
void place_updates(Graph& graph);

}  // namespace galley
