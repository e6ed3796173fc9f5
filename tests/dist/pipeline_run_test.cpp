// Laws: stages begin where the recipe says, or where they fit and take equal time; what cannot be cut is named; traffic of stages that are
// divided further equals the formulas.

#include "libcore/dist/pipeline_run.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/dist/rank_memory.h"

namespace galley {
namespace {

constexpr int64_t kStageElements = 1'600'000;
constexpr double kBytes = 4.0 * kStageElements;

/// Blocks h.0 ... of two modules each; only after the second one does a single value cross.
PlanModel blocks(int count) {
  PlanModel model;
  model.bytes = {.parameter = 4, .gradient = 4, .optimizer = 8};
  for (int i = 0; i < count; ++i) {
    model.units.push_back({.name = cat("h.", i)});
    model.parameters.push_back({.name = cat("h.", i, ".attn.weight"), .elements = kStageElements, .unit = i, .forward_segment = 2 * i});
    for (const bool attention : {true, false}) {
      model.forward.push_back({.name = cat("h.", i, attention ? ".attn" : ".mlp"),
                               .unit = i,
                               .work = {{.flops = 1, .executed = 1, .seconds = 0.5}},
                               .live_bytes = 100.0 * (i + 1),
                               .kept_bytes = attention ? 100.0 : 0,
                               .output_bytes = attention ? 0 : 10.0});
    }
  }
  for (int i = 2 * count - 1; i >= 0; --i)
    model.backward.push_back({.name = model.forward[static_cast<size_t>(i)].name,
                              .unit = i / 2,
                              .work = {{.flops = 2, .executed = 2, .seconds = 1}},
                              .live_bytes = 100.0 * (i / 2 + 1),
                              .forward = i});
  model.update = {{.seconds = 0}};
  model.flops = model.model_flops = 3.0 * count;
  return model;
}

Cluster machines(double link) {
  Cluster cluster;
  cluster.per_node = 64;
  cluster.peak_16 = cluster.peak_32 = cluster.bandwidth = 1e12;
  cluster.memory = 1e12;
  cluster.link = link;
  cluster.latency = 0;
  return cluster;
}

JobPlan pipeline(int64_t stages, int64_t micro_batches) {
  return {.strategy = ShardingStrategy::kPipeline, .mesh = {.pipe = stages}, .micro_batches = micro_batches};
}

std::string mistake(const std::vector<std::string>& split) {
  JobPlan job = pipeline(static_cast<int64_t>(split.size()) + 1, 4);
  job.split = split;
  try {
    pipeline_cuts(blocks(4), job, machines(1e9));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_EQ(error.key(), "sharding.split");
    return cat(error.message(), " | ", error.suggestion());
  }
  return "";
}

TEST(PipelineRun, StagesBeginAtTheModulesThatAreNamed) {
  JobPlan job = pipeline(3, 4);
  EXPECT_EQ(pipeline_cuts(blocks(6), job, machines(1e9)), (std::vector<size_t>{0, 4, 8})) << "auto: equal time";
  job.split = {"h.1", "h.5.attn"};
  EXPECT_EQ(pipeline_cuts(blocks(6), job, machines(1e9)), (std::vector<size_t>{0, 2, 10}));
  const Simulation named = simulate(blocks(6), job, machines(1e9));
  job.split.clear();
  EXPECT_GT(named.step_s, 1.4 * simulate(blocks(6), job, machines(1e9)).step_s) << "four of six blocks are in the second stage";
}

TEST(PipelineRun, WhatCannotBeCutIsNamed) {
  EXPECT_NE(mistake({"h.9"}).find("no module of that name computes in the forward pass | did you mean 'h.0'?"), std::string::npos)
      << mistake({"h.9"});
  EXPECT_NE(mistake({"h.0"}).find("with which the first stage begins"), std::string::npos) << mistake({"h.0"});
  EXPECT_NE(mistake({"h.2", "h.1"}).find("'h.1' after 'h.2.attn', but it computes earlier"), std::string::npos) << mistake({"h.2", "h.1"});
  EXPECT_NE(mistake({"h.2.mlp"}).find("more than one value of the forward pass would cross to it | begin at 'h.2.attn' or 'h.3.attn'"),
            std::string::npos)
      << mistake({"h.2.mlp"});
}

TEST(PipelineRun, StagesFitInMemory) {
  PlanModel model = blocks(8);
  model.parameters[0].elements = 4 * kStageElements;  // the first block holds as much as four others
  const JobPlan job = pipeline(2, 4);
  Cluster cluster = machines(1e9);
  EXPECT_EQ(pipeline_cuts(model, job, cluster), (std::vector<size_t>{0, 8}));
  cluster.memory = 6 * kStageElements * 16.0 + 1e5;
  EXPECT_EQ(pipeline_cuts(model, job, cluster), (std::vector<size_t>{0, 6}));
  EXPECT_LE(peak_bytes(rank_memory(model, job, cluster, {0, 6})), cluster.memory);
  EXPECT_GT(peak_bytes(rank_memory(model, job, cluster, {0, 8})), cluster.memory);
  cluster.memory = 1e6;
  EXPECT_EQ(pipeline_cuts(model, job, cluster), (std::vector<size_t>{0, 8})) << "nothing fits: equal time";
}

TEST(PipelineRun, TrafficOfDividedStagesEqualsTheFormulas) {
  const double stage = 2 * kBytes, sends = 10 * 4;
  const auto sent = [&](ShardingStrategy strategy, const Mesh& mesh, bool reshard) {
    const JobPlan job{.strategy = strategy, .mesh = mesh, .micro_batches = 4, .reshard_after_forward = reshard};
    return simulate(blocks(4), job, machines(1e12)).traffic;
  };
  const StepTraffic ddp = sent(ShardingStrategy::kPipeline, {.data = 4, .pipe = 2}, true);
  EXPECT_DOUBLE_EQ(ddp.all_reduce, 1.5 * stage);
  EXPECT_DOUBLE_EQ(ddp.send, sends);
  const StepTraffic zero = sent(ShardingStrategy::kZero1, {.shard = 4, .pipe = 2}, true);
  EXPECT_DOUBLE_EQ(zero.reduce_scatter, 0.75 * stage);
  EXPECT_DOUBLE_EQ(zero.all_gather, 0.75 * stage);
  EXPECT_DOUBLE_EQ(zero.all_reduce, 0);
  const StepTraffic kept = sent(ShardingStrategy::kFsdp, {.shard = 4, .pipe = 2}, false);
  EXPECT_DOUBLE_EQ(kept.all_gather, 0.75 * stage) << "once";
  EXPECT_DOUBLE_EQ(kept.reduce_scatter, 0.75 * stage);
  const StepTraffic freed = sent(ShardingStrategy::kFsdp, {.shard = 4, .pipe = 2}, true);
  EXPECT_DOUBLE_EQ(freed.all_gather, 4 * 2 * 0.75 * stage) << "each pass of each micro-batch";
  EXPECT_DOUBLE_EQ(freed.reduce_scatter, 4 * 0.75 * stage);
  const StepTraffic both = sent(ShardingStrategy::kFsdp, {.data = 2, .shard = 4, .pipe = 2}, false);
  EXPECT_DOUBLE_EQ(both.all_reduce, 1.0 * stage / 4) << "shards, between replicas";
}

/// Messages take 0.01 s. Of three stages the middle one sends both ways, of two each one sends in one direction.
TEST(PipelineRun, CommunicationCountsMessages) {
  const Cluster cluster = machines(1e3);
  const Simulation two = simulate(blocks(6), pipeline(2, 4), cluster), three = simulate(blocks(6), pipeline(3, 4), cluster);
  EXPECT_NEAR(two.communication_s, 4 * 0.01, 1e-9);
  EXPECT_NEAR(three.communication_s, 2 * 4 * 0.01, 1e-9);
  EXPECT_DOUBLE_EQ(three.traffic.send, 2 * 4 * 10);
  JobPlan parts = pipeline(2, 4);
  parts.schedule = PipelineSchedule::kInterleaved;
  parts.chunks = 2;
  EXPECT_NEAR(simulate(blocks(8), parts, cluster).communication_s, 3 * 4 * 0.01, 1e-9) << "parts 0 and 2 send 1 and 2 messages";
  JobPlan summed = pipeline(2, 4);
  summed.mesh.data = 2;
  EXPECT_NEAR(simulate(blocks(6), summed, cluster).communication_s, 4 * 0.01 + 3 * kBytes / 1e3, 1e-6) << "and the sum of gradients";
}

TEST(PipelineRun, GathersOfAStageRunBesideItsPasses) {
  JobPlan job{.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 4, .pipe = 2}, .micro_batches = 4};
  const double plain = simulate(blocks(4), pipeline(2, 4), machines(1e12)).step_s;
  // A forward pass of a stage takes 2 s, its gather 0.15 s.
  Cluster cluster = machines(0.75 * 2 * kBytes / 0.15);
  const Simulation hidden = simulate(blocks(4), job, cluster);
  EXPECT_NEAR(hidden.step_s, plain + 0.15, 1e-6) << "the last reduction is seen";
  cluster.link /= 100;
  EXPECT_GT(simulate(blocks(4), job, cluster).step_s, 5 * plain) << "bound by the link";
}

}  // namespace
}  // namespace galley
