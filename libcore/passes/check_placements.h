#pragma once
// check_placements: whether a rank's graph computes parts of what one rank computes, from what its operators do to parts.

#include "libcore/passes/tensor_parallel.h"

namespace galley {

/// Follows the parts of `divisions` through a forward graph. A value is whole, the rank's part along a dimension, or a partial sum. Checks
/// that operators read parts that belong together, that sums over ranks are complete before anything but a product with a whole value reads
/// them, that outputs are whole, and that parts are where `placements` says. Throws InternalError that names the node.
void check_placements(const Graph& graph, const TensorDivisions& divisions, const TensorPlacements& placements,
                      const TensorParallelOptions& options);

}  // namespace galley
