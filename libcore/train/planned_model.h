#pragma once
// The plan model of a recipe: its training graph on one rank's micro-batch, as galley-plan simulates it.

#include <cstdint>
#include <optional>

#include "libcore/dist/graph_model.h"
#include "libcore/dist/job.h"
#include "libcore/infer/session.h"

namespace galley {

struct PlannedModelOptions {
  int64_t micro = 1;         ///< Samples.
  int64_t accumulation = 1;  ///< Micro-batches of a step: above 1, gradients are states.
  int64_t sequence = 0;      ///< Tokens of a sample; 0: the model's.
  /// Runs the compiled program on random data and uses the time of each operator. Otherwise costs come from the rates of a cluster, and
  /// nothing is compiled.
  bool measure = false;
};

/// Throws the errors that training would throw before its first step.
PlanModel planned_model(Session& session, const PlannedModelOptions& options);

/// The job of so many ranks by the recipe's section `sharding`, with `accumulation` micro-batches of each rank. Throws an Error (kRecipe)
/// with the key if the ranks do not fit the mesh.
JobPlan planned_job(const Recipe& recipe, int64_t ranks, const Cluster& cluster);

/// How the ranks divide the recipe's batch. Without train.batch.micro, a pipeline takes four micro-batches for each stage if that divides.
BatchPlan planned_batch(const Recipe& recipe, const JobPlan& job);

/// Steps of one rank's share as they run on this machine, on random data and without collectives.
struct MeasuredStep {
  double step_s = 0;       ///< Median.
  int64_t peak_bytes = 0;  ///< High-water mark of resident memory, less that of the process before.
};
MeasuredStep measured_step(const Recipe& recipe, const BatchPlan& batch, int64_t steps);

/// Rates of this machine: as galley-benchmark machine stored or measures them.
LocalRates local_rates(int threads);

/// The rule of sharding.wrap for a model with these parameters. Throws Error (kRecipe) for selectors that match no module.
WrapRule wrap_rule(const Recipe& recipe, const std::vector<ParameterSpec>& parameters);

}  // namespace galley
