#pragma once
// The norm of all gradients by few kernels, for the rewrites of back ends.

#include "libcore/passes/target.h"

namespace galley {

/// kBeforeLayout: sums of squares that are added to one another are those of several arrays at once, of up to `most_bytes` in all, which
/// must be in memory together.
PassReport join_norms(Graph& graph, const Target& target, int64_t most_bytes);

}  // namespace galley
