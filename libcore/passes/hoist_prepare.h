#pragma once
// What a program computes once, not at each run.

#include "libcore/graph/graph.h"

namespace galley {

/// Moves nodes that depend on constants and on parameters and buffers that the graph does not update to the front: a program runs them when
/// these change. Returns how many there are.
size_t hoist_prepare(Graph& graph);

}  // namespace galley
