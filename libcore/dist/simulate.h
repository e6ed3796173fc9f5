#pragma once
// The simulator: when each rank computes and communicates in one step, by the costs of its operators and the cluster.

#include <string>
#include <vector>

#include "libcore/dist/job.h"
#include "libcore/dist/plan_model.h"

namespace galley {

/// What a rank does at a time.
enum class Lane : uint8_t { kCompute, kCommunication, kHost };
std::string_view name_of(Lane lane);

/// A time in which a rank does one thing.
struct LaneInterval {
  int64_t stage = 0;  ///< Ranks of one stage do the same at the same time.
  Lane lane = Lane::kCompute;
  std::string name;
  double begin = 0, end = 0;  ///< Seconds.
  double bytes = 0;           ///< Of collectives.
};

/// One step of all ranks.
struct Simulation {
  double step_s = 0;
  double compute_s = 0;               ///< Of the rank that computes longest, tensor-parallel all-reduces excluded.
  double communication_s = 0;         ///< Time of all collectives of that rank, hidden or not.
  double exposed_s = 0;               ///< step_s - compute_s: waiting for communication, the pipeline or the host.
  double bubble_s = 0;                ///< Pipelines: the part of exposed_s in which the rank waits for other stages.
  StepTraffic traffic;                ///< Bytes that the busiest rank sends.
  double flops = 0, model_flops = 0;  ///< Of one step of all ranks.
  std::vector<LaneInterval> timeline;
  std::vector<size_t> cuts;  ///< Pipelines: the first forward segment of each part.
};

/// Simulates one step. `cuts`: of pipeline_cuts, where they are known already. Throws an Error (kRecipe) if the model cannot be cut into
/// the stages.
Simulation simulate(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts = {});
/// Whether the job is a pipeline, which has cuts.
bool has_stages(const JobPlan& job);

/// The cuts of a pipeline: the first forward segment of each part, balanced by forward and backward time. Each part has parameters. Throws
/// an Error (kRecipe) if there are no such cuts, or the job names others.
std::vector<size_t> pipeline_cuts(const PlanModel& model, const JobPlan& job, const Cluster& cluster);
/// The cluster by whose rates galley-plan and galley-train cut recipes' models into stages, whatever machines run them, so that both have
/// the same stages: an A100's without limits of memory and time of launches.
Cluster cluster_of_cuts();
/// The segments of `to`, a model of the same modules, that begin where those of `from` do: by their modules and how often these came
/// before.
std::vector<size_t> same_segments(const PlanModel& from, const std::vector<size_t>& cuts, const PlanModel& to);

}  // namespace galley
