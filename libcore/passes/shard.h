#pragma once
// shard: turns the graph of one rank into that of one of several ranks, by collectives. Data parallel (ddp): every rank has all parameters
// and a part of the batch; losses and gradients are summed over ranks. ZeRO (Rajbhandari et al. 2020): each rank updates a part of the
// parameters.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/comm/bucket_layout.h"
#include "libcore/graph/graph.h"
#include "libcore/passes/power_sgd.h"

namespace galley {

/// The ranks that hold ranges of the same arrays, and those that hold the same ranges (hybrid). Those that divide arrays are neighbors.
struct ShardGroups {
  int rank = 0, ranks = 1;  // this rank's place among those that divide arrays, and their number
  int copies = 1;           // ranks that hold the same range; they are `ranks` apart
};

/// Before differentiation: the fed values of the graph are of this rank's samples, and so are its buffers, which are statistics of them.
/// Placements of all values follow.
void place_samples(Graph& graph, const ShardGroups& groups);
/// Throws InternalError that names an output of the graph that is not equal on all ranks.
void check_results(const Graph& graph);

/// The fed weight of the rank in sums over ranks: f32 [], the samples of its part of the batch divided by those of all parts.
inline constexpr std::string_view kRankWeight = "rank_weight";

/// Before differentiation: multiplies the losses (outputs "loss" and "loss.*") by the rank's weight, so that their sums over ranks, and
/// those of gradients, are the means over the whole batch.
void weigh_losses(Graph& graph);

/// After differentiation: replaces the losses by their sums over ranks. The sum starts after the forward pass and is waited for after the
/// backward pass.
void reduce_losses(Graph& graph);

/// A flat bucket of gradients.
struct GradientBucket {
  std::string name;         // of the collective: "grads.bucket1"
  std::string state;        // "shard.bucket1"
  std::string gather_name;  // of the collective that collects its parameters: "params.bucket1"
  std::vector<std::string> parameters;
  std::vector<Shape> shapes;
  BucketLayout layout;  // its members are places in `parameters`
  DType dtype = DType::kF32;
  int64_t group = 0;  // UpdatePiece::group
  bool trained = true;
  bool compressed = false;  // summed as factors (PowerSGD)
  bool divided = false;     // UpdatePiece::divided

  /// The type of a flat array with all of the bucket's elements, or with a rank's range of them: `elements`.
  TensorType type(int64_t elements, bool range) const;
};

/// What one update node changes: a parameter, or this rank's range of a bucket of parameters.
struct UpdatePiece {
  std::string name;  // of the parameter or the bucket
  Value parameter, gradient;
  int64_t group = 0;         // parameters with the same settings of the optimizer
  bool in_parameter = true;  // `parameter` is an input of the graph; else RankUpdates::finish writes the new value to the parameters
  bool divided = false;      // tensor parallelism: the ranks that read the same samples have other parts of it
};

/// How ranks divide gradients and updates. One object serves one graph.
class RankUpdates {
 public:
  virtual ~RankUpdates() = default;
  /// After differentiation: replaces gradients by their sums over ranks. Gradients of one dtype and group are copied into buckets (the
  /// first is smaller, so that communication begins early) in the order in which they become final. The collective of a bucket starts
  /// directly after its last gradient; buckets are waited for after the backward pass, each before its updates. Returns what this rank
  /// updates.
  virtual std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) = 0;
  /// Whether gradients are reduced in each pass of an accumulation, so that pieces are accumulated; else whole gradients are.
  virtual bool reduces_each() const { return false; }
  /// In the last pass of an accumulation, after the accumulated sums were added: sums pieces over the ranks that hold the same ones and
  /// whose gradients `reduce` did not sum (hybrid).
  virtual void sum_copies(Graph& /*graph*/, std::vector<UpdatePiece>& /*pieces*/) const {}
  /// The sum over all pieces of all ranks, from that of this rank's pieces.
  virtual Value total(Value own) const = 0;
  /// Called with the new value of each piece that is not a parameter: writes it to the parameters of all ranks.
  virtual void finish(Graph& graph, size_t piece, Value updated) = 0;
  /// After `reduce`: what the communication hook keeps, inputs of the graph that it updates.
  virtual std::vector<HookState> hook_states() const { return {}; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 protected:
  std::vector<GradientBucket> buckets_;
};

/// The pieces in the order in which their gradients become final, by their places: that in which ddp, zero1 and zero2 fill buckets.
std::vector<size_t> order_of_gradients(const Graph& graph, const std::vector<UpdatePiece>& pieces);

/// fsdp: a rank receives its range of the sum of each unit's gradients and updates its range of the unit's parameters, an input that is
/// added to the graph; gather_units replaces the parameters afterwards. Ranges of sums are accumulated. Units without gradients are
/// skipped.
/// hybrid: accumulated sums over the ranks that divide a unit are summed over those that hold the same range once in a step (sum_copies).
/// `summed`: as in BucketChoice.
std::unique_ptr<RankUpdates> gathered_updates(std::vector<GradientBucket> units, const ShardGroups& groups, std::optional<DType> hook = {},
                                              bool summed = false);

/// How gradients are divided into buckets: as `like` does, which has the same parameters, or by size.
struct BucketChoice {
  int64_t bytes = int64_t{25} << 20;
  const RankUpdates* like = nullptr;
  std::optional<DType> hook = std::nullopt;          // gradients are rounded to this dtype and summed over ranks in it
  std::optional<PowerSgd> power_sgd = std::nullopt;  // matrices are summed as factors; ddp, zero1
  /// Gradients are summed already, as in `like`: inputs with the names of buckets are added to the graph, whose values are the sums, flat
  /// and padded (ddp), or this rank's ranges of them.
  bool summed = false;
};

/// ddp: every rank updates all parameters with the sums of the gradients.
std::unique_ptr<RankUpdates> replicated_updates(const BucketChoice& choice, int ranks = 1);
/// zero1 and zero2: a rank receives its range of the sum of each bucket, updates its range of the bucket's parameters, and all ranks gather
/// the new values. The optimizer's state has the size of the ranges; its names begin with that of UpdatePiece::name, "shard.bucket1".
std::unique_ptr<RankUpdates> sharded_updates(const BucketChoice& choice, int rank, int ranks);

/// Replaces sums over ranks (ddp) by their operands: the graph of one rank again. For tests.
void remove_collectives(Graph& graph);

}  // namespace galley
