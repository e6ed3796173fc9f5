#pragma once
// Pipeline schedules: the order in which each stage runs forward and backward passes of micro-batches. pipeline_actions.h makes lists of
// actions of them.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libcore/dist/strategy.h"

namespace galley {

/// One pass of a stage: chunk `chunk` of the stage's parts of the model, on micro-batch `micro_batch`.
struct PipelinePass {
  int64_t micro_batch = 0;
  int64_t chunk = 0;
  bool backward = false;
  friend bool operator==(const PipelinePass&, const PipelinePass&) = default;
};

/// The passes of each stage in order. `chunks` must be 1 unless interleaved, and interleaving needs a number of micro-batches that is a
/// multiple of `stages`; throws an Error (kRecipe) otherwise.
std::vector<std::vector<PipelinePass>> pipeline_schedule(PipelineSchedule schedule, int64_t stages, int64_t micro_batches, int64_t chunks);

/// Cuts consecutive segments with these costs into `parts` such that the largest sum is smallest. Returns the first segment of each part.
/// `may_cut[i]`: whether a part may begin at segment i. `fits`: whether segments [begin, end) may be part number `part`; empty: always.
/// Returns an empty list if no choice of cuts satisfies both conditions.
using PartFits = std::function<bool(int64_t part, size_t begin, size_t end)>;
std::vector<size_t> balanced_cuts(std::span<const double> costs, const std::vector<bool>& may_cut, int64_t parts,
                                  const PartFits& fits = nullptr);

}  // namespace galley
