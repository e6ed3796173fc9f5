#pragma once
// Do the samples of a batch stay apart in a captured graph? A file says nothing of that: its nodes do.

#include <map>
#include <string>

#include "libcore/graph/graph.h"

namespace galley::onnx_import {

/// Follows the first dimension of the inputs, `samples` long, through an inference graph. Returns "" where each of the graph's outputs has
/// a row for each sample, in order, that depends on this sample alone; else the node, or the output, that says otherwise. An operator that
/// this does not know counts as one that mixes samples. `samples` should be a number that no other size of the graph is a multiple of.
std::string find_mixed_samples(const Graph& graph, int64_t samples);

}  // namespace galley::onnx_import
