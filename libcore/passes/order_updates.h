#pragma once
// When state is updated: as early as the data allow, so that a gradient dies at its update.

#include "libcore/graph/graph.h"

namespace galley {

/// Moves each node of Phase::kUpdate to the place where its inputs are final and no later node reads the old value of what it updates,
/// but never before the last node of the forward pass: the loss is known before the first update. Returns how many nodes moved.
int order_updates(Graph& graph);

}  // namespace galley
