#pragma once
// JobPlan: how a job's ranks divide a model, resolved for a number of ranks.

#include <cstdint>

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

struct JobPlan {
  ShardingStrategy strategy = ShardingStrategy::kNone;
  Mesh mesh;
  int64_t micro_batches = 1;  ///< Of one rank in a step; of a pipeline: that pass through it.
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t chunks = 1;  ///< Parts of the model per stage: above 1 for kInterleaved.
  bool reshard_after_forward = true;
  int64_t gather_limit = 0;  ///< Bytes of gathered parameters; 0: the two largest parts of units.
  int64_t bucket_bytes = int64_t{25} << 20;
  double hook_factor = 1;         ///< Bytes of summed gradients after the communication hook, divided by those before.
  bool reduce_each = false;       ///< zero2 with accumulation: reduces in each micro-batch.
  bool overlap_gradients = true;  ///< Sums of gradients run beside the backward pass.
  StatePlace parameters = StatePlace::kDevice, gradients = StatePlace::kDevice, optimizer = StatePlace::kDevice;

  /// Whether ranks hold ranges of parameters, and gather units before their use.
  bool gathers() const { return (strategy == ShardingStrategy::kFsdp || strategy == ShardingStrategy::kHybrid) && mesh.shard > 1; }
  /// Ranks that divide the optimizer state.
  int64_t optimizer_ranks() const {
    const bool divides = gathers() || strategy == ShardingStrategy::kZero1 || strategy == ShardingStrategy::kZero2;
    return divides ? mesh.shard : 1;
  }
};

}  // namespace galley
