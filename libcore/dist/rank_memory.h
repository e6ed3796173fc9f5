#pragma once
// Memory of a rank, by what it holds and by phase of a step.

#include <string>
#include <vector>

#include "libcore/dist/job.h"
#include "libcore/dist/plan_model.h"

namespace galley {

/// Bytes in one phase of a step.
struct PhaseMemory {
  std::string phase;                                    ///< "forward", "backward", "update"
  double parameters = 0, gradients = 0, optimizer = 0;  ///< Of the rank's own ranges, or whole arrays.
  double gathered = 0;                                  ///< Whole units of parameters, and the whole gradient of the unit in work.
  double activations = 0;                               ///< Including the arrays of the operators that run.
  double communication = 0;                             ///< Buckets in flight, compressed gradients.
  double other = 0;                                     ///< Buffers, fed data.
  double sum() const { return parameters + gradients + optimizer + gathered + activations + communication + other; }
};

/// The memory of the ranks of one stage.
struct RankMemory {
  int64_t stage = 0;
  ModelBytes model;  ///< What the formulas give, including what is offloaded.
  std::vector<PhaseMemory> phases;
  double host = 0;        ///< Bytes offloaded to the host.
  double kept_bytes = 0;  ///< Activations that wait for the backward pass, of all micro-batches in flight.

  const PhaseMemory& largest() const;
  double peak() const { return largest().sum(); }
};

/// One entry for each stage. `cuts`: of a pipeline (Simulation::cuts); empty: one stage.
std::vector<RankMemory> rank_memory(const PlanModel& model, const JobPlan& job, const Cluster& cluster, const std::vector<size_t>& cuts);

/// The largest peak of all stages.
double peak_bytes(const std::vector<RankMemory>& stages);

}  // namespace galley
