#pragma once
// Fuses neighboring operators into one with the same result, by the table in patterns.h. The result is the same on every machine, since
// calibration files name the values of a fused graph. Back ends fuse more in their rewrites (passes/target.h).

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Training graphs, before `differentiate`: batch_norm [+ add of a residual] [+ activation; with a residual only relu] becomes one
/// batch_norm. Each inner value must have one reader and must not be an output.
PassReport fuse_training(Graph& graph);

/// Inference graphs: conv2d [+ add of a residual] [+ activation], linear + activation, batch_norm_inference + activation.
PassReport fuse_inference(Graph& graph);

}  // namespace galley
