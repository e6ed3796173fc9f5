#pragma once
// tensor_parallel: turns the captured graph of one rank into that of one of several ranks that divide its matrices and read the same
// samples (Shoeybi et al. 2019). A layer that is divided by rows gives each rank a part of the features; the layer after it, divided by
// columns, gives partial sums, which are added over ranks.

#include <map>
#include <string>
#include <vector>

#include "libcore/passes/tensor_divisions.h"

namespace galley {

/// The part of the rank's values in those of one rank: all of it (no division), or a range along one dimension.
using TensorPlacements = std::map<ValueId, TensorDivision>;

struct TensorParallelOptions {
  int rank = 0, ranks = 1;
  bool gradients = true;  ///< The graph will be differentiated: sums over ranks are added where gradients are partial.
  /// Sums over ranks are scattered by samples, and gathered before the next divided layer: residual sums, norms and dropout are those of a
  /// rank's samples (sequence parallelism; Korthikanti et al. 2022, who divide tokens). Where the ranks do not divide the samples, sums are
  /// whole.
  bool scatter = false;
};

/// Before differentiation, and before other passes. Parameters keep their names; those of `divisions` have the shape of the rank's part.
/// All outputs of the graph are whole. Masks of dropout are those of one rank where heads of attention or samples are divided; where
/// features are, each rank draws its own. Returns the placements of divided values.
TensorPlacements tensor_parallel(Graph& graph, const TensorDivisions& divisions, const TensorParallelOptions& options);

}  // namespace galley
