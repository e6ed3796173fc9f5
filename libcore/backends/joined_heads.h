#pragma once
// One product for the queries, keys and values of an attention, for the rewrites of back ends: with few rows, three small products do not
// fill a GPU.

#include "libcore/passes/target.h"

namespace galley {

/// kBeforeLayout, graphs for inference: attention whose keys and values, or queries too, are linear layers of one array reads them from one
/// array, of one layer with the joined weights. Only of weights that are computed once, such as casts: joining
/// parameters themselves would take memory for a copy. The results are the same up to rounding.
PassReport join_heads(Graph& graph, const Target& target);

}  // namespace galley
