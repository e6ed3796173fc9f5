#pragma once
// Moves updates of state as early as possible, so that a gradient is not needed after its update, or collects them in groups.

#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// For each value, the value whose memory it uses: itself, or the value that it is a view of.
std::vector<ValueId> memory_of(const Graph& graph);

/// Moves each node of Phase::kUpdate to the first place at which its inputs are computed and no later node reads the old value of its
/// state, but not before the last node of the forward pass: the loss is known before the first update. Returns how many nodes moved.
int order_updates(Graph& graph);

/// The same, but updates wait until those that wait will write so many bytes of state, so that a back end can compute them together. The
/// gradients of a group are in memory at once.
int order_updates_in_groups(Graph& graph, int64_t group_bytes);

}  // namespace galley
