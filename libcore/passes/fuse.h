#pragma once
// Fusion of neighbours into one operator with the same result.

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Training form, before `differentiate`: batch_norm [+ add of a residual] [+ activation, with a residual relu alone] become one batch_norm, and such a
/// norm with the depthwise convolution behind it one batch_norm_depthwise, where `has_kernel` says that there is one (nullptr: nowhere). Each inner
/// value must have one reader and be no output.
PassReport fuse_training(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel = nullptr);

/// Training form, differentiated: gradients of what a gate multiplies (squeeze-and-excitation). The gate's, a product summed over the pixels, becomes one
/// sum_products; the sum of the gate's product with its gradient and what comes back through the gate's mean goes into the batch_norm_backward that reads it,
/// where `has_kernel` says that there is one, and what lies between has no other reader and is no output.
PassReport fuse_gates(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel);

/// Training form, differentiated and with formats assigned: the two gradients of a 1x1 convolution with that of the batch_norm behind it become one operator, and
/// so does a 1x1 convolution with the batch_norm_depthwise behind it, in both directions or neither (ops/pointwise.h), where `has_kernel` says that there
/// are such, and what lies between them has no other reader and is no output.
PassReport fuse_pointwise(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel);

/// Training form, differentiated, with formats assigned and behind fuse_pointwise: an add of what a convolution's input gradient gives and another gradient
/// goes into that operator as its residual, where `has_kernel` says that there is one, and the gradient has no other reader and is no output.
PassReport fuse_gradient_sums(Graph& graph, const std::function<bool(const Graph&, const Node&)>& has_kernel);

/// Inference: conv2d [+ add of a residual] [+ activation], linear + activation, batch_norm_inference + activation.
PassReport fuse_inference(Graph& graph);

}  // namespace galley
