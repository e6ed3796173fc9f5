#pragma once
// Rewrites of the CPU back end: operators fused further than other back ends want, and forms for which it has kernels. Each rewrite asks
// `target` whether a kernel supports the result, and reports what it replaced and what it declined.

#include "libcore/passes/target.h"

namespace galley {

/// kForward: a batch_norm and the depthwise convolution that alone reads its output become one batch_norm_depthwise. After fuse_training.
PassReport fuse_batch_norm_depthwise(Graph& graph, const Target& target);

/// kBeforeLayout: gradients of what a gate multiplies (squeeze-and-excitation). The gate's gradient, a product summed over the pixels,
/// becomes one sum_products. The gradient of the gated array is a sum of (gradient times gate) and of the gradient of a mean over the
/// pixels; where only a batch_norm_backward reads it, both become gated_batch_norm_backward (gates.h).
PassReport fuse_gates(Graph& graph, const Target& target);

/// kBeforeLayout: operators on bf16 or f16 values that have no kernel compute in f32 between casts: the same numbers, rounded where a value
/// is stored, at the cost of the casts. Counts them in the report; operators without an f32 form are left unchanged.
PassReport widen_unsupported(Graph& graph, const Target& target);

/// kBeforeLayout: layers of f8_e4m3 become those of f32 (f8_linear, f8_conv2d), with activations rounded to f8 and weights decoded, which
/// an inference does once: CPUs do not multiply f8.
PassReport decode_f8(Graph& graph);

/// kBeforeLayout: 3 x 3 convolutions of stride 1, their two gradients and quantized ones use Winograd's minimal filtering (winograd.h)
/// where that is faster. Kernels are transformed by a node of their own; an inference runs it once.
PassReport use_winograd(Graph& graph, const Target& target);

/// kAfterLayout: the two gradients of a 1x1 convolution and that of the batch_norm that reads it become one operator, and so does a 1x1
/// convolution with the batch_norm_depthwise that reads it, in both directions or neither (pointwise.h). The value between has no
/// other reader and is not an output of the graph.
PassReport fuse_pointwise(Graph& graph, const Target& target);

/// kAfterLayout, after fuse_pointwise: the sum of a convolution's input gradient and another gradient moves into the operator that
/// computes the former, as its residual.
PassReport fuse_gradient_sums(Graph& graph, const Target& target);

}  // namespace galley
