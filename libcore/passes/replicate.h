#pragma once
// replicate: the two graphs of a training step that logical replicas compute (deterministic). The graph of a replica has a part of the
// batch; its gradients, and the statistics of its batch norms, are outputs. The graph of the update reads their sums over all replicas.

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/ops/norm.h"
#include "libcore/passes/shard.h"

namespace galley {

/// The fed share of a replica in the batch: f32 [], its samples divided by those of all replicas.
inline constexpr std::string_view kReplicaShare = "replica_share";
/// The flat output of a replica, and the input of the update: mean and variance of all batch norms, one after the other.
inline constexpr std::string_view kStatistics = "statistics";

/// Before differentiation: batch norms normalize by the statistics of all ranks, or replicas. `factor`: the samples of all of them, divided
/// by those of this graph.
void sync_batch_norms(Graph& graph, double factor);

/// The update of running statistics that was taken out of a graph.
struct StatisticsUpdate {
  std::string path;
  std::array<std::string, 3> buffers;  // running_mean, running_var, num_batches_tracked ("" without it)
  int64_t channels = 0;
  BatchNormUpdateAttrs attrs;
};

/// Takes the updates of running statistics out of a graph.
class ReplicaStatistics {
 public:
  /// Before differentiation: removes the updates; the statistics are outputs until `join`.
  void take(Graph& graph);
  /// After differentiation: makes them one output, kStatistics, weighted by the fed kReplicaShare.
  void join(Graph& graph) const;
  /// In the graph of the update, which has the buffers as inputs: reads kStatistics and updates them.
  void add_updates(Graph& graph) const;
  /// As join and add_updates, with an output, and an input, for each batch norm (`output`): stages of a pipeline have those of their norms.
  void join_each(Graph& graph) const;
  void add_update(Graph& graph, size_t norm) const;
  static std::string output(size_t norm);
  const std::vector<StatisticsUpdate>& updates() const { return updates_; }
  int64_t elements() const;

 private:
  std::vector<StatisticsUpdate> updates_;
};

/// In the graph of a replica: divides gradients into buckets, or, if there are any, into the trained units. Each gradient becomes an
/// output, flat. Nothing is updated.
std::unique_ptr<RankUpdates> replica_gradients(const BucketChoice& choice, std::vector<GradientBucket> units);
/// The output with the gradient of a member of a bucket.
std::string gradient_output(const GradientBucket& bucket, size_t member);

}  // namespace galley
