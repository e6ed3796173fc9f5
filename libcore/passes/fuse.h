#pragma once
// Fusion of neighbours into one operator with the same result, from the table in patterns.h. The same on every machine: files of
// calibration statistics name the values of a fused graph. Back ends fuse more in their rewrites (passes/target.h).

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Training graphs, before `differentiate`: batch_norm [+ add of a residual] [+ activation, with a residual relu alone] become one
/// batch_norm. Each inner value must have one reader and be no output.
PassReport fuse_training(Graph& graph);

/// Inference graphs: conv2d [+ add of a residual] [+ activation], linear + activation, batch_norm_inference + activation.
PassReport fuse_inference(Graph& graph);

}  // namespace galley
