#pragma once
// gather_units: fully sharded data parallelism (FSDP). A rank holds its range of the parameters of each unit; a unit is gathered before its
// first use and freed after its last one, in the forward pass and again in the backward pass.

#include <cstdint>
#include <vector>

#include "libcore/passes/shard.h"

namespace galley {

struct GatherOptions {
  int rank = 0, ranks = 1;
  bool reshard_after_forward = true;  ///< false: the backward pass reads what the forward pass has gathered
  /// Bytes of gathered units, with that which is gathered ahead; 0: the two largest units. Error (kRecipe) if a unit is larger.
  int64_t limit = 0;
  bool common = false;  ///< Ranks that share memory have one copy of a gathered unit.
};

/// Replaces the parameters of the units by inputs with this rank's ranges, named GradientBucket::state, and gathers. The gather of a unit
/// starts when the unit before it is complete, if both fit in the limit. The graph may be differentiated and have its updates.
void gather_units(Graph& graph, const std::vector<GradientBucket>& units, const GatherOptions& options);

}  // namespace galley
