#pragma once
// Finds what a program computes once instead of in each run.

#include "libcore/graph/graph.h"

namespace galley {

/// For each value, whether it depends only on constants and on parameters and buffers that the graph does not update. Not large constants,
/// and in training not unpacks_parameters().
std::vector<bool> computed_once(const Graph& graph);

/// Moves the nodes of such values to the front. A program runs them when these parameters and buffers change. Returns how many there are.
size_t hoist_prepare(Graph& graph);

/// Whether the node makes a weight from parameters that store it in less memory, as integers. In training its result is not kept: each
/// pass makes it when it reads it.
bool unpacks_parameters(const Graph& graph, const Node& node);

}  // namespace galley
