// Laws: bytes of ranks equal the formulas with padded buckets, and published figures; traffic equals 2f and 3f of the parameter bytes;
// times of collectives, pipeline bubbles, activations and FLOPs equal their closed forms.

#include "libcore/dist/formulas.h"

#include <gtest/gtest.h>

#include <numeric>

namespace galley {
namespace {

constexpr double kGB = 1e9;

TEST(Formulas, ModelStatesOfZero) {
  // Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, 64 ranks, mixed precision with Adam.
  const StateBytes mixed{.parameter = 2, .gradient = 2, .optimizer = 12};
  const auto sum = [&](ShardingStrategy strategy) { return model_bytes(strategy, 7.5e9, 64, mixed).sum() / kGB; };
  EXPECT_DOUBLE_EQ(sum(ShardingStrategy::kDdp), 120);
  EXPECT_NEAR(sum(ShardingStrategy::kZero1), 31.4, 0.05);
  EXPECT_NEAR(sum(ShardingStrategy::kZero2), 16.6, 0.05);
  EXPECT_NEAR(sum(ShardingStrategy::kFsdp), 1.9, 0.05);
  EXPECT_DOUBLE_EQ(model_bytes(ShardingStrategy::kZero1, 64, 8, {4, 4, 4}).sum(), 64 * 8 + 4 * 8) << "f32 SGD with momentum: 8 + 4/N";
  EXPECT_DOUBLE_EQ(model_bytes(ShardingStrategy::kZero2, 64, 8, {4, 4, 0}).sum(), 64 * 4 + 4 * 8) << "f32 SGD: 4 + 4/N";
}

TEST(Formulas, BucketsAreDividedToTheByte) {
  // 7 + 30 elements of f32: the second starts at element 16, the array has 46; three ranks hold 16 each.
  const std::vector<BucketMember> members{{.elements = 7}, {.elements = 30}};
  const std::vector<BucketLayout> buckets = divide_into_buckets(members, 1 << 20, 1 << 20);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].elements, 46);
  EXPECT_EQ(buckets[0].shard(3), 16);
  EXPECT_EQ(buckets[0].padded(3), 48);
  EXPECT_EQ(buckets[0].shard(1), 48);
  EXPECT_EQ(buckets[0].shard(4), 16) << "the last rank holds padding only";
  const auto bytes = [&](ShardingStrategy strategy, int64_t average) {
    return model_bytes(strategy, buckets, 37, 3, {.parameter = 4, .gradient = 4, .optimizer = 8, .average = average});
  };
  const ModelBytes ddp = bytes(ShardingStrategy::kDdp, 0), zero1 = bytes(ShardingStrategy::kZero1, 0);
  EXPECT_EQ(ddp.parameters, 37 * 4);
  EXPECT_EQ(ddp.gradients, 46 * 4);
  EXPECT_EQ(ddp.optimizer, 37 * 8);
  EXPECT_EQ(zero1.parameters, 37 * 4);
  EXPECT_EQ(zero1.gradients, 48 * 4);
  EXPECT_EQ(zero1.optimizer, 16 * 8);
  EXPECT_EQ(bytes(ShardingStrategy::kZero2, 4).gradients, 16 * 4);
  EXPECT_EQ(bytes(ShardingStrategy::kZero2, 4).optimizer, 16 * 4 + 37 * 4) << "averages are whole";
  EXPECT_EQ(bytes(ShardingStrategy::kFsdp, 4).parameters, 16 * 4);
  EXPECT_EQ(bytes(ShardingStrategy::kFsdp, 4).optimizer, 16 * 8);
}

TEST(Formulas, TrafficOfStrategies) {
  const TrafficRule rule{.ranks = 4, .parameter_bytes = 100, .gradient_bytes = 100};
  const double f = 0.75;
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kDdp, rule).sum(), 2 * f * 100);
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kZero1, rule).sum(), 2 * f * 100);
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kZero2, rule).sum(), 2 * f * 100);
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kFsdp, rule).sum(), 3 * f * 100);
  TrafficRule more = rule;
  more.micro_batches = 3;
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kFsdp, more).sum(), 9 * f * 100);
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kZero2, more).sum(), 2 * f * 100);
  more.reshard_after_forward = false;
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kFsdp, more).sum(), 6 * f * 100);
  TrafficRule hybrid = rule;
  hybrid.replicas = 2;
  EXPECT_DOUBLE_EQ(data_parallel_traffic(ShardingStrategy::kHybrid, hybrid).all_reduce, 2 * 0.5 * 100 / 4);
}

TEST(Formulas, FixedTreesOfReplicas) {
  // Measured in the experiment of eight replicas: 0, 1, 2, 1.5 and 1 times a ring's reduce-scatter for 1, 2, 3, 4 and 8 ranks.
  EXPECT_DOUBLE_EQ(tree_reduce_factor(1, 8), 0);
  EXPECT_DOUBLE_EQ(tree_reduce_factor(2, 8), 0.5);
  EXPECT_DOUBLE_EQ(tree_reduce_factor(4, 8), 0.75);
  EXPECT_DOUBLE_EQ(tree_reduce_factor(8, 8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(tree_reduce_factor(3, 8), 2 * 2.0 / 3);
  EXPECT_DOUBLE_EQ(tree_reduce_factor(5, 8), 2 * 4.0 / 5);
}

TEST(Formulas, TimesOfCollectives) {
  const GroupLinks node{.ranks = 8, .nodes = 1, .latency = 1e-6, .inside = 100e9, .between = 10e9};
  const auto seconds = [](CollectiveOp op, CollectiveAlgorithm algorithm, const GroupLinks& links, double bytes) {
    return collective_seconds(op, algorithm, links, bytes);
  };
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllReduce, CollectiveAlgorithm::kRing, node, 8e9), 14e-6 + 2 * 7.0 / 8 * 0.08);
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllGather, CollectiveAlgorithm::kRing, node, 8e9), 7e-6 + 7.0 / 8 * 0.08);
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllReduce, CollectiveAlgorithm::kTree, node, 8e9), 6e-6 + 2 * 0.08);
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllReduce, CollectiveAlgorithm::kHalvingDoubling, node, 8e9), 6e-6 + 2 * 7.0 / 8 * 0.08);
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kReduceScatter, CollectiveAlgorithm::kDirect, node, 8e9), 1e-6 + 7.0 / 8 * 0.08);
  const GroupLinks nodes{.ranks = 16, .nodes = 2, .latency = 1e-6, .inside = 100e9, .between = 10e9};
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllGather, CollectiveAlgorithm::kRing, nodes, 8e9), 15e-6 + 15.0 / 16 * 0.8)
      << "a flat ring runs at the rate of a node's network";
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllGather, CollectiveAlgorithm::kHierarchical, nodes, 8e9), 7e-6 + 7.0 / 8 * 0.08 + 1e-6 + 0.4);
  EXPECT_DOUBLE_EQ(seconds(CollectiveOp::kAllReduce, CollectiveAlgorithm::kRing, {.ranks = 1}, 8e9), 0);
  EXPECT_EQ(choose_collective(CollectiveOp::kAllReduce, node, 100, false).algorithm, CollectiveAlgorithm::kTree) << "short: latency counts";
  EXPECT_EQ(choose_collective(CollectiveOp::kAllReduce, node, 8e9, false).algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(choose_collective(CollectiveOp::kAllGather, node, 100, false).algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(choose_collective(CollectiveOp::kAllReduce, node, 8e9, true).algorithm, CollectiveAlgorithm::kDirect);
}

TEST(Formulas, Pipelines) {
  EXPECT_DOUBLE_EQ(pipeline_bubble(4, 12, 1), 3.0 / 15);
  EXPECT_DOUBLE_EQ(pipeline_bubble(4, 12, 2), 3.0 / 27);
  EXPECT_DOUBLE_EQ(pipeline_bubble(1, 12, 1), 0);
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kGpipe, 2, 4, 12, 1), 12);
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kOneForwardOneBackward, 0, 4, 12, 1), 4);
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kOneForwardOneBackward, 3, 4, 12, 1), 1);
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kOneForwardOneBackward, 0, 4, 2, 1), 2);
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kInterleaved, 0, 4, 12, 2), (6 + 4 + 1) / 2.0) << "about p (1 + (p-1)/(p c))";
  EXPECT_DOUBLE_EQ(held_micro_batches(PipelineSchedule::kInterleaved, 0, 4, 4, 2), 4);
}

TEST(Formulas, ActivationsAndFlops) {
  const GptLayer layer{.tokens = 2048, .hidden = 12288, .heads = 96, .sequence = 2048};
  const double th = 2048.0 * 12288, scores = 5.0 * 96 * 2048 / 12288;
  EXPECT_DOUBLE_EQ(gpt_layer_activation_bytes(layer, ActivationPolicy::kKeep, 1, false), th * (34 + scores));
  EXPECT_DOUBLE_EQ(gpt_layer_activation_bytes(layer, ActivationPolicy::kKeep, 8, false), th * (10 + 3 + scores / 8));
  EXPECT_DOUBLE_EQ(gpt_layer_activation_bytes(layer, ActivationPolicy::kKeep, 8, true), th / 8 * (34 + scores));
  EXPECT_DOUBLE_EQ(gpt_layer_activation_bytes(layer, ActivationPolicy::kSelective, 8, true), 34 * th / 8);
  EXPECT_DOUBLE_EQ(gpt_layer_activation_bytes(layer, ActivationPolicy::kFull, 8, false), 2 * th);
  // Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + v/16lh), recomputation counted.
  const double layers = 96, v = 51200, h = 12288, s = 2048;
  const double paper = 96 * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h));
  EXPECT_NEAR(4 * layers * gpt_layer_flops(layer) + 3 * gpt_head_flops(layer, v), paper, 1e-9 * paper);
  EXPECT_DOUBLE_EQ(tensor_parallel_bytes(layer, 8, 2, false), 4 * 2 * 7.0 / 8 * th * 2);
  EXPECT_DOUBLE_EQ(tensor_parallel_bytes(layer, 8, 2, true), 6 * 2 * 7.0 / 8 * th * 2);
  const Utilization use = utilization(3e15, 4e15, 10, 2, 312e12);
  EXPECT_DOUBLE_EQ(use.mfu, 3e15 / (20 * 312e12));
  EXPECT_DOUBLE_EQ(use.hfu, 4e15 / (20 * 312e12));
}

}  // namespace
}  // namespace galley
