#pragma once
// Checks that a captured graph does not mix the samples of a batch. An ONNX file does not declare this; it follows from the nodes.

#include <map>
#include <string>

#include "libcore/graph/graph.h"

namespace galley::onnx_import {

/// Follows the first dimension of the inputs, of size `samples`, through an inference graph. Returns "" if every output of the graph has
/// one row per sample, in order, that depends only on that sample; otherwise a description of the first node or output that does not.
/// Unknown operators count as mixing samples. `samples` should be a number of which no other size of the graph is a multiple.
std::string find_mixed_samples(const Graph& graph, int64_t samples);

}  // namespace galley::onnx_import
