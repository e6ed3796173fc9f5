#pragma once
// Where a graph with formats changes the format of an activation, and whether that is inside its image part or at its edge: what the layout
// doctor tells.

#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

struct FormatLoss {
  int node = 0;     // the reorder, an index into nodes()
  int reader = -1;  // the first node that reads it: who asked; -1: an output of the graph
  /// Images are channels_last on both sides, within one phase: the format was lost and restored. Otherwise the reorder stands
  /// at the edge, where the last features leave the image part (flatten before a classifier) or their gradient enters it: once a pass,
  /// whatever the depth.
  bool interior = false;
  std::string reason;  // "reshape wants contiguous values"
};

/// Of each value: does it depend on what is fed? Weights that a graph folds or packs do not: they are prepared once.
std::vector<bool> fed_values(const Graph& graph);

/// Reorders of fed values of rank 4 and 5 between contiguous and channels_last that move bytes, in order. The graph is one that
/// assign_layout made.
std::vector<FormatLoss> format_losses(const Graph& graph);

}  // namespace galley
