#pragma once
// Closed formulas of training on many ranks: bytes of model states, traffic, time of collectives, activations, pipeline bubble, FLOPs.
// docs/performance/simulator.md states their sources.

#include <cstdint>
#include <span>
#include <string_view>

#include "libcore/comm/bucket_layout.h"
#include "libcore/dist/strategy.h"

namespace galley {

/// Bytes per element of what training keeps of each trained parameter.
struct StateBytes {
  int64_t parameter = 4;  ///< In the dtype of computations.
  int64_t gradient = 4;
  int64_t optimizer = 8;  ///< Moments, averages, and the f32 master copy if parameters have 16 bits.
  int64_t average = 0;    ///< The part of `optimizer` that zero1 and zero2 do not divide: moving averages of parameters.
};

/// Bytes of one rank.
struct ModelBytes {
  double parameters = 0, gradients = 0, optimizer = 0;
  double sum() const { return parameters + gradients + optimizer; }
};

/// Bytes that one of `ranks` data-parallel ranks keeps, for buckets of all trained parameters, which have `elements` without gaps and
/// padding; without gathered units. What ranks divide, and gradients, have the size of buckets. kHybrid: `ranks` is the number of ranks of
/// a node. kPipeline and kTensor count as kDdp of the buckets of one stage or slice.
ModelBytes model_bytes(ShardingStrategy strategy, std::span<const BucketLayout> buckets, int64_t elements, int64_t ranks,
                       const StateBytes& bytes);
/// The same without padding, for `parameters` elements (Rajbhandari et al. 2020, "ZeRO", figure 1).
ModelBytes model_bytes(ShardingStrategy strategy, double parameters, int64_t ranks, const StateBytes& bytes);

/// Bytes that one rank sends in a step, by collective.
struct StepTraffic {
  double all_reduce = 0, reduce_scatter = 0, all_gather = 0, all_to_all = 0, send = 0;
  double sum() const { return all_reduce + reduce_scatter + all_gather + all_to_all + send; }
  StepTraffic& operator+=(const StepTraffic& other);
};

/// How parameters and gradients travel.
struct TrafficRule {
  int64_t ranks = 1;           ///< That divide or sum: N.
  int64_t replicas = 1;        ///< kHybrid: nodes M that hold the same shards.
  double parameter_bytes = 0;  ///< Of the padded buckets, in the dtype of gathers.
  double gradient_bytes = 0;   ///< In the dtype of sums.
  int64_t micro_batches = 1;   ///< In which fsdp gathers and reduces.
  bool reshard_after_forward = true;
};
/// StepTraffic of parameters and gradients: 2f for ddp, zero1 and zero2 and 3f for fsdp, f = (N-1)/N, times the bytes.
StepTraffic data_parallel_traffic(ShardingStrategy strategy, const TrafficRule& rule);
/// Bytes that the busiest rank sends if sums are added in one tree of `replicas` leaves (deterministic: true), times the bytes of
/// gradients: f where the ranks divide the leaves and the leaves are a power of two; more partial sums otherwise.
double tree_reduce_factor(int64_t ranks, int64_t replicas);

/// Collectives by algorithm.
enum class CollectiveOp : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kSend };
enum class CollectiveAlgorithm : uint8_t { kRing, kTree, kHalvingDoubling, kDirect, kHierarchical };
std::string_view name_of(CollectiveOp op);
std::string_view name_of(CollectiveAlgorithm algorithm);

/// The links of a group of ranks.
struct GroupLinks {
  int64_t ranks = 1;
  int64_t nodes = 1;   ///< Over which the ranks are spread evenly.
  double latency = 0;  ///< Seconds per step.
  double inside = 0;   ///< Bytes per second of a rank's link inside the node.
  double between = 0;  ///< Bytes per second into one node for this group: its share of the network.
};
/// Seconds of a collective over `bytes`, the size of the full array. A flat ring over whole nodes lets each byte enter a node once, so that
/// its rate between nodes is that of a node's network, not of one rank's part.
double collective_seconds(CollectiveOp op, CollectiveAlgorithm algorithm, const GroupLinks& links, double bytes);
/// An algorithm, and its time.
struct ChosenCollective {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  double seconds = 0;
};
/// The fastest algorithm that `op` has. `shared_memory`: ranks read each other's memory (kDirect).
ChosenCollective choose_collective(CollectiveOp op, const GroupLinks& links, double bytes, bool shared_memory);

/// Idle part of a step of a pipeline whose stages take equal time: (p-1) / (m c + p-1). `chunks`: parts of the model per stage.
double pipeline_bubble(int64_t stages, int64_t micro_batches, int64_t chunks);
/// Micro-batches whose activations stage `stage` (from 0) holds at once, in units of micro-batches of a whole stage.
double held_micro_batches(PipelineSchedule schedule, int64_t stage, int64_t stages, int64_t micro_batches, int64_t chunks);

/// A layer of a GPT for the closed formulas.
struct GptLayer {
  double tokens = 0;  ///< Of a micro-batch.
  double hidden = 0, heads = 0, sequence = 0;
};
enum class ActivationPolicy : uint8_t { kKeep, kSelective, kFull };
/// Bytes of activations that a layer keeps for the backward pass, in 16 bits with dropout (Korthikanti et al. 2022, table 2).
double gpt_layer_activation_bytes(const GptLayer& layer, ActivationPolicy policy, int64_t tensor, bool sequence_parallel);
/// Forward floating-point operations of a layer (24 T h^2 + 4 T s h) and of the head (2 T h v).
double gpt_layer_flops(const GptLayer& layer);
double gpt_head_flops(const GptLayer& layer, double vocabulary);

/// Bytes that a rank sends for tensor parallelism in one layer and micro-batch: all-reduces of T h elements, two in the forward and two in
/// the backward pass, two more with recomputation.
double tensor_parallel_bytes(const GptLayer& layer, int64_t tensor, int64_t element_bytes, bool recompute);

/// Model and hardware FLOPs utilization: without and with recomputation.
struct Utilization {
  double mfu = 0, hfu = 0;
};
Utilization utilization(double model_flops, double hardware_flops, double seconds, int64_t ranks, double peak);

}  // namespace galley
