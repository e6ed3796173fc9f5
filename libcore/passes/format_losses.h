#pragma once
// Finds where a graph changes the memory format of activations, inside its image part or at the edge of it. For galley-convert-layout
// --check.

#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

struct FormatLoss {
  int node = 0;     // the reorder, an index into nodes()
  int reader = -1;  // the first node that reads it and so needs it; -1: an output of the graph
  /// Images are channels_last before and after it, in one phase: the format is lost and restored. Otherwise the reorder is at
  /// the edge, where features leave the image part (flatten before a classifier) or their gradient enters it: once per pass for any
  /// depth.
  bool interior = false;
  std::string reason;  // "reshape needs contiguous values"
};

/// For each value: does it depend on fed inputs? Weights that a graph folds or packs do not; they are prepared once.
std::vector<bool> fed_values(const Graph& graph);

/// Reorders that move bytes between contiguous and channels_last, of values of rank 4 and 5 that depend on fed inputs, in order. The graph
/// comes from assign_layout.
std::vector<FormatLoss> format_losses(const Graph& graph);

}  // namespace galley
