#pragma once
// Updates of f32 parameters that read gradients in bf16 or f16, for the rewrites of back ends.

#include "libcore/passes/target.h"

namespace galley {

/// kBeforeLayout: steps of optimizers and sums of squares read gradients before their cast to f32, where the kernels can. The results have
/// the same bits; casts that nothing reads go.
PassReport use_half_gradients(Graph& graph, const Target& target);

}  // namespace galley
