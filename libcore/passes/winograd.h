#pragma once
// 3 x 3 convolutions of stride 1 by Winograd's minimal filtering, where that is faster.

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// conv2d and conv2d_backward_data -> winograd_weights and winograd_conv2d, where ops/winograd.h says that it fits and is worthwhile and
/// `supported` that there is a fast kernel for a node (of a graph of its own, channels_last). Transformed weights depend on parameters alone: an inference makes
/// them once. conv2d_backward_weights is told that its kernels may do likewise; quantized_conv2d -> quantized_winograd_weights and
/// quantized_winograd_conv2d. Runs after differentiation and after the conversion to integers.
PassReport use_winograd(Graph& graph, const std::function<bool(const Graph& graph, const Node& node)>& supported);

}  // namespace galley
