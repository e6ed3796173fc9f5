#pragma once
// Moves updates of state as early as possible, so that a gradient is not needed after its update.

#include "libcore/graph/graph.h"

namespace galley {

/// Moves each node of Phase::kUpdate to the first place at which its inputs are computed and no later node reads the old value of its
/// state, but not before the last node of the forward pass: the loss is known before the first update. Returns how many nodes moved.
int order_updates(Graph& graph);

}  // namespace galley
