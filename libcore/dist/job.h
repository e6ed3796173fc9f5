#pragma once
// JobPlan: how a job's ranks divide a model, resolved for a number of ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/dist/cluster.h"
#include "libcore/dist/formulas.h"
#include "libcore/dist/strategy.h"

namespace galley {

/// Where a part of the model states is kept.
enum class StatePlace : uint8_t { kDevice, kHost, kDisk };

/// Ranks along each axis. Neighboring ranks differ in `tensor`, then in `shard`, `data` and `pipe`.
struct Mesh {
  int64_t data = 1, shard = 1, tensor = 1, pipe = 1;
  int64_t ranks() const { return data * shard * tensor * pipe; }
};
enum class MeshAxis : uint8_t { kTensor, kShard, kData, kPipe };
int64_t size_of(const Mesh& mesh, MeshAxis axis);
/// The links among ranks that differ in one axis only.
GroupLinks group_links(const Cluster& cluster, const Mesh& mesh, MeshAxis axis);

/// The job: what ranks divide, and when they communicate.
struct JobPlan {
  ShardingStrategy strategy = ShardingStrategy::kNone;
  Mesh mesh;
  int64_t micro_batches = 1;  ///< Of one rank in a step; of a pipeline: that pass through it.
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t chunks = 1;              ///< Parts of the model per stage: above 1 for kInterleaved.
  std::vector<std::string> split;  ///< Modules at which parts 2, 3, ... of a pipeline begin; empty: parts of equal time that fit.
  bool reshard_after_forward = true;
  int64_t gather_limit = 0;  ///< Bytes of gathered parameters; 0: the two largest parts of units.
  int64_t bucket_bytes = int64_t{25} << 20;
  double hook_factor = 1;         ///< Bytes of summed gradients after the communication hook, divided by those before.
  int64_t power_sgd_rank = 0;     ///< Above 0: ranks sum factors of this rank instead of matrices.
  bool error_feedback = true;     ///< PowerSGD: what the factors leave out is kept for the next step.
  bool overlap_gradients = true;  ///< Sums of gradients run beside the backward pass.
  StatePlace parameters = StatePlace::kDevice, gradients = StatePlace::kDevice, optimizer = StatePlace::kDevice;

  /// Whether ranks hold ranges of parameters, and gather units before their use.
  bool gathers() const { return divides_parameters(strategy) && mesh.shard > 1; }
  /// Whether units of parameters come to the device before their use: gathered, or from where they are offloaded to.
  bool fetches() const { return gathers() || parameters != StatePlace::kDevice; }
  /// Ranks that divide the optimizer state.
  int64_t optimizer_ranks() const {
    const bool divides = gathers() || strategy == ShardingStrategy::kZero1 || strategy == ShardingStrategy::kZero2;
    return divides ? mesh.shard : 1;
  }
};

struct PlanModel;
struct PlanParameter;

/// Bytes of a parameter's gradient as ranks sum it: after the communication hook, in the dtype of sums.
double summed_bytes(const PlanModel& model, const PlanParameter& parameter, const JobPlan& job);

}  // namespace galley
