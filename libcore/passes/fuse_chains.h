#pragma once
// Element-wise functions that read one another become one operator, elementwise_chain, which reads its inputs and writes its result once.

#include "libcore/graph/graph.h"
#include "libcore/passes/target.h"

namespace galley {

/// For the rewrite of a back end at kAfterLayout, as the last fusion: others take the nodes that they know first. A result moves into the
/// function that reads it where nothing else reads it, where it has the shape, dtype and format of what that function makes, and where both
/// are of one phase. A chain stands in the place of its last function; it takes in none that would keep more memory alive until then. Each
/// step rounds as its operator does, so kernels give the same bits. Makes only chains that the target has a kernel for; a longer sequence
/// becomes several. The path of a chain is the nearest module that contains all of its functions: time and memory of one operator cannot be
/// divided among them.
PassReport fuse_chains(Graph& graph, const Target& target);

}  // namespace galley
