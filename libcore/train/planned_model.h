#pragma once
// The plan model of a recipe: its training graph on one rank's micro-batch, as galley-plan simulates it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "libcore/dist/graph_model.h"
#include "libcore/dist/job.h"
#include "libcore/infer/session.h"

namespace galley {

/// How steps ran on this machine, on random data and without collectives.
struct MeasuredStep {
  double step_s = 0;                ///< Median.
  double fastest_s = 0;             ///< Of all steps.
  int64_t arena_bytes = 0;          ///< Scratch memory that is allocated.
  int64_t planned_arena_bytes = 0;  ///< That the memory plan asks for.
  int64_t peak_bytes = 0;           ///< High-water mark of resident memory, less that of the process before.
};

/// Runs after which medians are good to a few percent.
inline constexpr int64_t kMeasuredRuns = 7;

/// How steps are measured.
struct StepMeasuring {
  /// Runs of the compiled program on random data with and without a look at each operator, at most (about 10 s, at least one of each). 0:
  /// costs come from the rates of a cluster, and nothing is compiled.
  int64_t runs = 0;
  /// Asked with the bytes that the step needs, before memory is allocated: false means that costs come from rates. Empty: always true.
  std::function<bool(int64_t bytes)> may_run;
  /// Asked after each run: true ends the measurement early. Empty: never.
  std::function<bool()> stop;
};

struct PlannedModelOptions {
  int64_t micro = 1;         ///< Samples.
  int64_t accumulation = 1;  ///< Micro-batches of a step: above 1, gradients are states.
  int64_t sequence = 0;      ///< Tokens of a sample; 0: the model's.
  int64_t tensor = 1;        ///< Ranks that divide matrices: above 1, the graph is that of the first one, and nothing is measured.
  StepMeasuring measuring;
};

/// A captured training graph. Units of parameters are not part of it: one graph serves recipes that differ in `sharding` only.
struct PlannedGraph;
/// Throws the errors that training would throw before its first step.
std::shared_ptr<const PlannedGraph> planned_graph(Session& session, const PlannedModelOptions& options);
/// The steps of a measured graph without a look at operators; empty if none ran.
const std::optional<MeasuredStep>& measured_step(const PlannedGraph& graph);
/// The model of a graph, with the units of the recipe.
PlanModel planned_model(const PlannedGraph& graph, const Recipe& recipe);
/// The model of a micro-batch of so many samples, by rates: as galley-plan and galley-train cut it into stages.
PlanModel planned_model(const Session& session, int64_t micro);
/// Parameters as graph_model takes them, without the order of gradients.
std::vector<GraphParameter> graph_parameters(const std::vector<ParameterSpec>& parameters);
/// Both at once.
PlanModel planned_model(Session& session, const PlannedModelOptions& options);

/// The job of so many ranks by the recipe's section `sharding`, with `accumulation` micro-batches of each rank. Throws an Error (kRecipe)
/// with the key if the ranks do not fit the mesh.
JobPlan planned_job(const Recipe& recipe, int64_t ranks, const Cluster& cluster);

/// The replicas of `deterministic` that `ranks` ranks compute one by one; 0: none. One GPU computes a single replica as an ordinary batch.
int64_t logical_replicas(const Recipe& recipe, int64_t ranks);

/// How the ranks divide the recipe's batch. Without train.batch.micro, a pipeline takes up to four micro-batches for each stage.
/// With deterministic, micro-batches are the replicas of the rank that has most of them.
BatchPlan planned_batch(const Recipe& recipe, const JobPlan& job);

/// Steps of one rank's share (`measuring.runs`) as they run on this machine, on random data and without collectives.
MeasuredStep measured_step(const Recipe& recipe, const BatchPlan& batch, const StepMeasuring& measuring);

/// Rates of this machine: as galley-benchmark machine stored or measures them.
LocalRates local_rates(int threads);

/// The rule of sharding.wrap for a model with these parameters. Throws Error (kRecipe) for selectors that match no module.
WrapRule wrap_rule(const Recipe& recipe, const std::vector<ParameterSpec>& parameters);

}  // namespace galley
