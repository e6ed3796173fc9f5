#pragma once
// Batch norms with running statistics after a convolution or linear layer become part of its weight and bias.

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// The batch norms of a training graph compute with their running statistics, and nothing updates these any more.
void freeze_batch_norm(Graph& graph);

/// conv2d or linear followed by batch_norm_inference: w' = w s, b' = (b - mean) s + beta, s = gamma / sqrt(var + eps) for each output
/// channel. The folded values are computed by nodes on parameters and buffers only, which a Program runs in `prepare`, not in each run.
/// Declined if the product has another reader or an activation.
PassReport fold_batch_norm(Graph& graph);

}  // namespace galley
