#pragma once
// StepPlanner: what a step of a recipe costs on so many ranks of a cluster, what changes of the recipe would do, and which settings fit.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/dist/rank_memory.h"
#include "libcore/dist/simulate.h"
#include "libcore/train/plan_search.h"
#include "libcore/train/planned_model.h"
#include "libcore/train/planned_tables.h"

namespace galley {

/// The plan of one step.
struct StepPlan {
  int64_t ranks = 1;
  JobPlan job;
  BatchPlan batch;
  std::shared_ptr<const PlanModel> model;  ///< Of one rank: divided already if ranks divide matrices.
  Simulation simulation;
  std::vector<RankMemory> stages;  ///< Without divided tables.
  std::optional<PlannedTables> tables;
  double peak = 0;   ///< Bytes of the rank that needs most.
  double host = 0;   ///< Bytes that the ranks of a node offload to their host.
  bool fits = true;  ///< In the memory of the cluster's devices and hosts.
  Utilization use;

  /// Samples per second over all ranks.
  double rate() const { return static_cast<double>(batch.global) / simulation.step_s; }
  /// Bytes of divided tables on a rank.
  double table_bytes(int64_t rank) const { return tables ? tables->plan.rank_bytes[static_cast<size_t>(rank)] : 0; }
  /// The stage of a rank. Ranks of one stage are neighbors.
  int64_t stage_of(int64_t rank) const { return rank / (job.mesh.data * job.mesh.shard * job.mesh.tensor); }
};

/// What one change of the recipe or the number of ranks does.
struct PlanEffect {
  std::string key, value;
  std::optional<StepPlan> plan;  ///< Empty: not possible, `reason` says why.
  std::string reason;
};

/// Limits of the recipe on this cluster.
struct PlanLimits {
  std::optional<int64_t> micro;     ///< Largest number of samples of a micro-batch that fits; empty: not even one.
  std::optional<int64_t> sequence;  ///< Largest number of tokens of a sample that fits; empty: not a language model.
  bool sequence_of_model = false;   ///< The model reads no more tokens.
};

/// Settings that fit, and their plan.
struct FittedPlan {
  StepPlan plan;
  std::vector<std::pair<std::string, std::string>> settings;  ///< Keys of the recipe and their values.
  std::string fragment;                                       ///< As YAML, for --with.
  std::string not_trained;                                    ///< Why galley-train cannot train with these settings; empty: it can.
};

/// What a search found.
struct PlanSearch {
  std::optional<FittedPlan> best;  ///< Empty: nothing fits.
  int64_t candidates = 0;
  std::vector<PlanRejection> rejected;  ///< The others, by reason.
};

/// What most of a rank's memory holds when it needs most, as "53.7 GiB of it activations that wait for the backward pass".
std::string largest_part(const StepPlan& plan);

/// Plans steps of one recipe. Graphs that several plans need are captured once.
class StepPlanner {
 public:
  /// With `measuring.runs`, operator times are medians of runs on this machine (cluster local). The recipe must outlive the planner.
  StepPlanner(const Recipe& recipe, int64_t ranks, Cluster cluster, StepMeasuring measuring = {});

  const Cluster& cluster() const { return cluster_; }
  /// Steps of one micro-batch as they ran in turns with those whose operators were measured; empty if none ran.
  const std::optional<MeasuredStep>& measured() const { return measured_; }
  /// The plan of the recipe.
  StepPlan plan();
  /// Changes one by one: number of ranks, size of units, offload, recomputation, dtype of sums, resharding. Without measured times.
  std::vector<PlanEffect> effects();
  PlanLimits limits();
  /// Searches the settings with which a step is fastest among those that need at most so many bytes on each rank (plan_search.h says what
  /// is tried). Settings that galley-train cannot train are tried where no others fit. `progress` is called with the numbers of tried and
  /// of all candidates; the search ends early when it returns false.
  PlanSearch fit(double bytes, const std::function<bool(int64_t, int64_t)>& progress);

 private:
  struct Request {
    int64_t ranks = 1, sequence = 0;
    bool measured = false;
    double limit = 0;  ///< Above 0: no simulation if a rank needs more bytes.
  };
  StepPlan plan_of(const Recipe& recipe, const Request& request);
  std::shared_ptr<const PlanModel> model_of(const Recipe& recipe, const JobPlan& job, const BatchPlan& batch, const Request& request);
  /// The cluster with its ranks: local ranks share the machine.
  Cluster cluster_of(int64_t ranks) const;
  /// Why galley-train cannot train with the settings, as check_ranks says; empty: it can.
  std::string not_trained(const PlanCandidate& candidate) const;
  /// Searches among these candidates; false: the search ended early.
  bool search(std::vector<PlanCandidate> candidates, double bytes, const std::function<bool(int64_t, int64_t)>& progress, PlanSearch& found,
              PlanRejections& rejections);
  /// Sets the bound of each candidate. Candidates whose model cannot be divided so are rejected and removed.
  void bound(std::vector<PlanCandidate>& candidates, PlanRejections& rejections);
  std::string place() const { return cluster_.shared_memory ? "disk" : "host"; }

  const Recipe& recipe_;
  int64_t ranks_;
  Cluster cluster_;
  StepMeasuring measuring_;
  std::optional<MeasuredStep> measured_;
  std::map<std::string, std::shared_ptr<const PlannedGraph>> graphs_;
  std::map<std::string, std::shared_ptr<const PlanModel>> models_;
};

}  // namespace galley
