#pragma once
// Fuses element-wise functions that read one another into one operator, elementwise_chain, which reads its inputs and writes its result
// once.

#include "libcore/graph/graph.h"
#include "libcore/passes/target.h"

namespace galley {

/// Back ends call it in their rewrite at kAfterLayout, after all other fusions. A function is fused with the function that reads its result
/// if nothing else reads it, if both results have one shape, dtype and format, and if both nodes are in one phase. A chain takes the place
/// of its last function; a function is left out if moving it there would keep more memory in use. Each step rounds as its operator does, so
/// results have the same bits. Makes only chains for which the target has a kernel; a longer sequence becomes several chains. The path of a
/// chain is the nearest module that contains all of its functions, since time and memory of one operator cannot be divided among them.
PassReport fuse_chains(Graph& graph, const Target& target);

}  // namespace galley
