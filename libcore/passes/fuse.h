#pragma once
// Fusion of neighbours into one operator with the same result.

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Training form, before `differentiate`: batch_norm [+ add of a residual] + relu become one batch_norm with activation and residual.
/// Each inner value must have one reader and be no output.
PassReport fuse_training(Graph& graph);

/// Inference: conv2d [+ add of a residual] [+ activation], linear + activation, batch_norm_inference + activation.
PassReport fuse_inference(Graph& graph);

}  // namespace galley
