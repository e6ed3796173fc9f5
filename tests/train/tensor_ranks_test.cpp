// Tensor parallelism: ranks, as threads, that divide the matrices of a transformer compute what one rank computes, within rounding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/comm/local.h"
#include "libcore/recipe/recipe.h"
#include "libcore/train/step_planner.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

/// 53 tokens: ranks divide the vocabulary unequally. Dropout everywhere.
constexpr std::string_view kTensorGpt = R"(
recipe: 1
name: tensor
model: {type: gpt, n_layer: 2, n_head: 4, n_embd: 24, block_size: 9, vocab_size: 53, dropout: 0.1}
data:
  train: {source: {type: synthetic, samples: 24, values: integer, high: 53}, shuffle: true, workers: 1}
  val: {source: {type: synthetic, samples: 10, values: integer, high: 53}}
train:
  duration: 6 steps
  batch: 4
  optimizer: {type: adamw, lr: 0.01, weight_decay: 0.1}
  clip: 0.5
checkpoint: {every: 3 steps}
log: {every: 1 step, tensorboard: false}
)";
constexpr int64_t kLayers = 2, kWidth = 24, kTokens = 4 * 9, kVocabulary = 53;

Trained train_gpt(const std::string& folder, int ranks, std::vector<std::string> overrides = {}, std::string_view recipe = kTensorGpt) {
  return train(folder, ranks, std::move(overrides), recipe);
}

void expect_near_parameters(const Trained& a, const Trained& b, double tolerance) {
  ASSERT_EQ(b.errors.front(), "");
  ASSERT_FALSE(a.parameters.empty());
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  ASSERT_EQ(a.losses[0].size(), b.losses[0].size());
  for (size_t i = 0; i < a.losses[0].size(); ++i) {
    EXPECT_NEAR(a.losses[0][i], b.losses[0][i], tolerance) << "step " << i + 1;
    EXPECT_NEAR(a.norms[0][i], b.norms[0][i], 2 * tolerance) << "step " << i + 1;
  }
  for (const auto& [name, values] : a.parameters) {
    const auto& others = b.parameters.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], others[i], 3 * tolerance) << name << " " << i;
  }
  for (const auto& [name, value] : a.metrics[0])
    EXPECT_NEAR(value, find_metric(b.metrics[0], name), 20 * tolerance * std::max(1.0, value)) << name;
}

/// Adam divides by the root of a mean of squares: gradients near zero turn rounding into differences of steps.
constexpr double kNear = 2e-3, kNearSgd = 2e-5;
const std::vector<std::string> kSgd{"train.optimizer={type: sgd, lr: 0.5, momentum: 0.9}"};

TEST(TensorRanks, ComputeWhatOneRankComputes) {
  const TemporaryFolder folder;
  const Trained one = train_gpt(folder / "one", 1, kSgd);
  for (const int ranks : {2, 4}) {
    std::vector<std::string> overrides = kSgd;
    overrides.emplace_back("sharding=tensor");
    const Trained many = train_gpt(folder / cat("many", ranks), ranks, overrides);
    expect_near_parameters(one, many, kNearSgd);
    for (size_t r = 1; r < many.losses.size(); ++r) {
      EXPECT_EQ(many.losses[r], many.losses[0]);
      EXPECT_EQ(many.norms[r], many.norms[0]);
      EXPECT_EQ(many.digests[r], many.digests[0]);
    }
    EXPECT_EQ(train_gpt(folder / cat("again", ranks), ranks, overrides).digests[0], many.digests[0]);
  }
}

std::vector<std::string> with_matrices(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

TEST(TensorRanks, AccumulateRecomputeAndAverage) {
  const TemporaryFolder folder;
  const std::vector<std::string> more{"train.batch={global: 4, micro: 2}", "train.recompute=full", "train.ema=0.9", "train.clip=0.5"};
  const Trained one = train_gpt(folder / "one", 1, with_matrices(kSgd, more));
  EXPECT_GT(*std::max_element(one.norms[0].begin(), one.norms[0].end()), 0.5);  // it clips
  const Trained two = train_gpt(folder / "two", 2, with_matrices(with_matrices(kSgd, more), {"sharding=tensor"}));
  expect_near_parameters(one, two, kNearSgd);
}

TEST(TensorRanks, SmoothLabels) {
  const TemporaryFolder folder;
  const std::vector<std::string> more{"loss={type: cross_entropy, label_smoothing: 0.2}", "metrics=[loss, perplexity, top5]"};
  const Trained one = train_gpt(folder / "one", 1, with_matrices(kSgd, more));
  expect_near_parameters(one, train_gpt(folder / "four", 4, with_matrices(with_matrices(kSgd, more), {"sharding=tensor"})), kNearSgd);
}

TEST(TensorRanks, TrainInLowPrecision) {
  const TemporaryFolder folder;
  const std::vector<std::string> more{"precision=bf16", "train.clip=null"};
  const Trained one = train_gpt(folder / "one", 1, with_matrices(kSgd, more));
  const Trained two = train_gpt(folder / "two", 2, with_matrices(with_matrices(kSgd, more), {"sharding=tensor"}));
  ASSERT_EQ(two.errors[0], "");
  // Products and their sums over ranks are rounded to 8 bits.
  for (size_t i = 0; i < one.losses[0].size(); ++i) EXPECT_NEAR(one.losses[0][i], two.losses[0][i], 0.02);
}

/// A step sends, in elements of f32 for T tokens of width E: forward and backward, two sums of T E in each block; the sum of looked up rows
/// and the gradient of what the head reads, T E each; the logits of targets, T; and the squares of the norm. Parts of logarithms of sums
/// are gathered, T of each rank.
TEST(TensorRanks, SendWhatTheFormulaSays) {
  for (const int ranks : {2, 4}) {
    const TemporaryFolder folder;
    const std::vector<std::string> without{"sharding=tensor", "data.val=null", "checkpoint=null"};
    const auto sent = [&](int64_t steps) {
      return train_gpt(folder / cat("run", steps), ranks, with_matrices(without, {cat("train.duration=", steps, " steps")}));
    };
    const Trained few = sent(2), more = sent(3);
    ASSERT_EQ(few.errors[0], "");
    for (size_t r = 0; r < few.reduced.size(); ++r) {
      const auto own = [&](int64_t count) { return segment_of(count, ranks, static_cast<int>(r)).size(); };
      // Of one all-reduce: parts of sums to their owners, and own sums to all.
      const auto summed = [&](int64_t count) { return (count - own(count)) + own(count) * (ranks - 1); };
      const int64_t rows = (kTokens + 15) / 16 * 16;
      const int64_t signals = more.reduced[r].calls - few.reduced[r].calls - (4 * kLayers + 4);  // scalars of the loop, 8 bytes each
      EXPECT_EQ(more.reduced[r].bytes - few.reduced[r].bytes,
                4 * ((4 * kLayers + 2) * summed(kTokens * kWidth) + summed(kTokens) + summed(1)) + 8 * signals * summed(1))
          << ranks << " ranks, rank " << r;
      EXPECT_EQ(more.gathered[r].bytes - few.gathered[r].bytes, 4 * rows * (ranks - 1));
    }
  }
}

/// Sums are scattered by samples and gathered again, so that as many bytes are sent; norms and their parameters' gradients are added. Masks
/// of dropout are those of one rank. 4 samples on 2 and 4 ranks; micro-batches of 2 on 4 ranks are not divided.
TEST(TensorRanks, ScatterSumsBySamples) {
  const TemporaryFolder folder;
  const std::vector<std::string> divided{"sharding={strategy: tensor, sequence_parallel: true}"};
  const Trained one = train_gpt(folder / "one", 1, kSgd);
  for (const int ranks : {2, 4}) {
    const Trained many = train_gpt(folder / cat("many", ranks), ranks, with_matrices(kSgd, divided));
    expect_near_parameters(one, many, kNearSgd);
    const Trained whole = train_gpt(folder / cat("whole", ranks), ranks, with_matrices(kSgd, {"sharding=tensor"}));
    for (size_t r = 0; r < many.losses.size(); ++r) {
      EXPECT_EQ(many.losses[r], many.losses[0]);
      EXPECT_EQ(many.digests[r], many.digests[0]);
      EXPECT_GT(many.gathered[r].bytes, 4 * whole.gathered[r].bytes);
      EXPECT_LT(many.reduced[r].bytes, whole.reduced[r].bytes / 2);
    }
  }
  const std::vector<std::string> two{"train.batch={global: 4, micro: 2}", "train.recompute=selective"};
  const Trained by_two = train_gpt(folder / "one2", 1, with_matrices(kSgd, two));
  for (const int ranks : {2, 4})  // two ranks gather again, four do not divide
    expect_near_parameters(by_two, train_gpt(folder / cat("again", ranks), ranks, with_matrices(with_matrices(kSgd, divided), two)),
                           kNearSgd);
}

/// Pairs of ranks divide matrices, and both pairs read a half of each batch.
TEST(TensorRanks, ComputeOnAMeshWithDataParallelRanks) {
  const TemporaryFolder folder;
  const std::vector<std::string> more{"train.batch={global: 4, micro: 1}", "train.ema=0.9"};
  const Trained one = train_gpt(folder / "one", 1, with_matrices(kSgd, more));
  const std::vector<std::string> mesh =
      with_matrices(with_matrices(kSgd, more), {"sharding={strategy: ddp, mesh: {data: 2, tensor: 2}, bucket: 4KiB}"});
  const Trained four = train_gpt(folder / "four", 4, mesh);
  expect_near_parameters(one, four, kNearSgd);
  for (size_t r = 1; r < 4; ++r) {
    EXPECT_EQ(four.losses[r], four.losses[0]);
    EXPECT_EQ(four.norms[r], four.norms[0]);
    EXPECT_EQ(four.digests[r], four.digests[0]);
  }
  // Another division continues it.
  const std::string run = folder / "run";
  ASSERT_EQ(train_gpt(run, 4, with_matrices(mesh, {"train.duration=3 steps"})).errors[0], "");
  const Trained after = train_gpt(run, 2, with_matrices(with_matrices(kSgd, more), {"sharding=tensor"}));
  ASSERT_EQ(after.errors[0], "");
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(after.losses[0][i], one.losses[0][3 + i], kNearSgd);
}

std::string mesh_of(const char* strategy) {
  return cat("sharding={strategy: ", strategy, ", mesh: {shard: 2, tensor: 2}, bucket: 4KiB, wrap: {parameters: 2k}}");
}

/// Pairs of ranks divide matrices; ranks with the same parts divide these, or the optimizer's state, once more.
TEST(TensorRanks, DivideStatesAndParametersOfParts) {
  const TemporaryFolder folder;
  const std::vector<std::string> more{"train.batch={global: 4, micro: 1}", "train.ema=0.9", "train.clip=0.5",
                                      "train.optimizer={type: sgd, lr: 0.5, momentum: 0.9}"};
  const Trained one = train_gpt(folder / "one", 1, more);
  const Trained replicated = train_gpt(folder / "ddp", 4, with_matrices(more, {"sharding={strategy: ddp, mesh: {data: 2, tensor: 2}}"}));
  for (const char* strategy : {"zero1", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    const bool parameters = std::string_view(strategy) == "fsdp";
    const Trained four = train_gpt(folder / strategy, 4, with_matrices(more, {mesh_of(strategy)}));
    expect_near_parameters(one, four, kNearSgd);
    for (size_t r = 1; r < 4; ++r) {
      EXPECT_EQ(four.losses[r], four.losses[0]);
      EXPECT_EQ(four.norms[r], four.norms[0]);
      EXPECT_EQ(four.digests[r], four.digests[0]);
    }
    // Momentum is halved, with fsdp also averages and sums of gradients; buckets have padding.
    EXPECT_LT(four.state_bytes[0], (parameters ? 0.6 : 0.85) * static_cast<double>(replicated.state_bytes[0]));
    // Other divisions continue it, and it continues theirs.
    for (const auto& [before, after] :
         {std::pair(mesh_of(strategy), std::string("sharding=tensor")), std::pair(std::string("sharding=zero1"), mesh_of(strategy))}) {
      const std::string run = folder / "run";
      ASSERT_EQ(train_gpt(run, 4, with_matrices(more, {before, "train.duration=3 steps"})).errors[0], "");
      const Trained second = train_gpt(run, 4, with_matrices(more, {after}));
      ASSERT_EQ(second.errors[0], "");
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(second.losses[0][i], one.losses[0][3 + i], kNearSgd) << before << " to " << after;
      std::filesystem::remove_all(run);
    }
  }
}

/// Equal bits for an equal degree, whatever the number of ranks beside it that read other samples; another degree has others.
TEST(TensorRanks, ReplicasHaveEqualBitsForEachDegree) {
  const TemporaryFolder folder;
  const std::vector<std::string> common = with_matrices(kSgd, {"deterministic=true", "train.batch=8"});
  const Trained one = train_gpt(folder / "one", 1, common);
  const Trained two = train_gpt(folder / "two", 2, with_matrices(common, {"sharding=tensor"}));
  expect_near_parameters(one, two, kNearSgd);
  EXPECT_NE(one.digests[0], two.digests[0]) << "parts of products are added over ranks";
  for (const int data : {2, 3}) {
    const Trained mesh =
        train_gpt(folder / cat("mesh", data), 2 * data,
                  with_matrices(common, {cat("sharding={strategy: tensor, mesh: {data: ", data, ", tensor: 2}}"), "threads=2"}));
    ASSERT_EQ(mesh.errors[0], "");
    EXPECT_EQ(mesh.parameters, two.parameters) << data;
    EXPECT_EQ(mesh.losses[0], two.losses[0]) << data;
    EXPECT_EQ(mesh.norms[0], two.norms[0]) << data;
    EXPECT_EQ(mesh.metrics[0], two.metrics[0]) << data;
  }
  for (const char* strategy : {"zero1", "zero2", "fsdp"}) {
    const Trained mesh = train_gpt(folder / strategy, 4, with_matrices(common, {mesh_of(strategy), "threads=2"}));
    ASSERT_EQ(mesh.errors[0], "");
    EXPECT_EQ(mesh.parameters, two.parameters) << strategy;
    EXPECT_EQ(mesh.norms[0], two.norms[0]) << strategy;
    EXPECT_EQ(mesh.metrics[0], two.metrics[0]) << strategy;
  }
}

/// Of eight ranks pairs divide matrices, pairs of these their parts, and two of such groups read other samples.
TEST(TensorRanks, DivideInsideNodesAndReplicateBetweenThem) {
  const TemporaryFolder folder;
  const std::string hybrid = "sharding={strategy: hybrid, mesh: {data: 2, shard: 2, tensor: 2}, bucket: 4KiB, wrap: {parameters: 2k}}";
  const std::vector<std::string> more = with_matrices(kSgd, {"train.batch={global: 8, micro: 1}", "train.clip=0.5", "train.ema=0.9"});
  const Trained one = train_gpt(folder / "one", 1, more);
  const Trained eight = train_gpt(folder / "eight", 8, with_matrices(more, {hybrid}));
  expect_near_parameters(one, eight, kNearSgd);
  for (size_t r = 1; r < 8; ++r) {
    EXPECT_EQ(eight.losses[r], eight.losses[0]);
    EXPECT_EQ(eight.digests[r], eight.digests[0]);
  }
  const std::string run = folder / "run";
  ASSERT_EQ(train_gpt(run, 8, with_matrices(more, {hybrid, "train.duration=3 steps"})).errors[0], "");
  const Trained after = train_gpt(run, 2, with_matrices(more, {"sharding=fsdp"}));
  ASSERT_EQ(after.errors[0], "");
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(after.losses[0][i], one.losses[0][3 + i], kNearSgd);
  const std::vector<std::string> bits = with_matrices(kSgd, {"deterministic=true", "train.batch=8"});
  const Trained two = train_gpt(folder / "two", 2, with_matrices(bits, {"sharding=tensor"}));
  const Trained same = train_gpt(folder / "same", 8, with_matrices(bits, {hybrid}));
  ASSERT_EQ(same.errors[0], "");
  EXPECT_EQ(same.parameters, two.parameters);
  EXPECT_EQ(same.norms[0], two.norms[0]);
}

TEST(TensorRanks, KeepStatesOnTheDisk) {
  const TemporaryFolder folder;
  const Trained memory = train_gpt(folder / "memory", 2, {"sharding=tensor"});
  const Trained disk = train_gpt(folder / "disk", 2, {"sharding={strategy: tensor, offload: {parameters: disk, optimizer: disk}}"});
  ASSERT_EQ(disk.errors[0], "");
  EXPECT_EQ(disk.parameters, memory.parameters);
  EXPECT_EQ(memory.disk_bytes[0], 0);
  EXPECT_GT(disk.disk_bytes[0], memory.state_bytes[0]);  // the states, and the parameters
}

/// Adapters over divided layers are divided where the layer's rows or columns are; frozen parameters are never summed.
TEST(TensorRanks, TrainAdaptersOverDividedLayers) {
  const TemporaryFolder folder;
  const Trained base = train_gpt(folder / "base", 1, {"train.duration=1 step"});
  ASSERT_EQ(base.errors[0], "");
  const std::vector<std::string> common =
      with_matrices(kSgd, {cat("weights=", folder / "base/weights.safetensors"),
                           "lora={rank: 3, alpha: 6, dropout: 0, match: [\"*c_attn\", \"*c_proj\", \"*c_fc\"]}"});
  const Trained one = train_gpt(folder / "one", 1, common);
  ASSERT_EQ(one.errors[0], "");
  for (const int ranks : {2, 4}) {
    const Trained many = train_gpt(folder / cat("many", ranks), ranks, with_matrices(common, {"sharding=tensor"}));
    expect_near_parameters(one, many, kNearSgd);
    // Momentum of adapters alone: those of 4 layers a block. Rows: A is whole, B a part; columns: the reverse.
    constexpr int64_t kRank = 3;
    const int64_t whole = kLayers * kRank * (2 * kWidth /* A of qkv, fc */ + 2 * kWidth /* B of both projections */);
    const int64_t parts = kLayers * kRank * (3 * kWidth + 4 * kWidth + kWidth + 4 * kWidth) / ranks;
    EXPECT_EQ(many.state_bytes[0], 4 * (whole + parts)) << ranks;
  }
  // With ranks that read other samples: sums over them are those of adapters alone, and of the loss.
  const Trained mesh =
      train_gpt(folder / "mesh", 4,
                with_matrices(common, {"sharding={strategy: tensor, mesh: {data: 2, tensor: 2}}", "train.validate=null", "data.val=null"}));
  ASSERT_EQ(mesh.errors[0], "");
  for (size_t i = 0; i < one.losses[0].size(); ++i) EXPECT_NEAR(mesh.losses[0][i], one.losses[0][i], kNearSgd) << i;
  for (const auto& [name, values] : base.parameters) EXPECT_EQ(mesh.parameters.at(name), values) << name << " is frozen";
}

/// Each rank holds its part of divided matrices and of their moments.
TEST(TensorRanks, HoldTheirPartOfTheStates) {
  const TemporaryFolder folder;
  const Trained one = train_gpt(folder / "one", 1);
  const Trained two = train_gpt(folder / "two", 2, {"sharding=tensor"});
  constexpr int64_t kWhole = kWidth * 9 /* positions */ + (4 * kLayers + 2) * kWidth /* norms */ + 2 * kLayers * kWidth /* biases */;
  constexpr int64_t kBlock = 12 * kWidth * kWidth + 7 * kWidth;  // qkv and fc with biases, both projections without
  const int64_t all = kWhole + kLayers * kBlock + kVocabulary * kWidth;
  EXPECT_EQ(one.state_bytes[0], 2 * 4 * all);
  EXPECT_EQ(two.state_bytes[0], 2 * 4 * (kWhole + kLayers * kBlock / 2 + 27 * kWidth));
  EXPECT_EQ(two.state_bytes[1], 2 * 4 * (kWhole + kLayers * kBlock / 2 + 26 * kWidth));
}

/// galley-plan says what the ranks hold and send.
TEST(TensorRanks, ArePlannedAsTheyTrain) {
  const TemporaryFolder folder;
  for (const int ranks : {2, 4}) {
    const std::vector<std::string> overrides{"sharding=tensor", "data.val=null", "checkpoint=null"};
    const LoadedRecipe loaded = test::load_text(kTensorGpt, overrides);
    const StepPlan plan = StepPlanner(loaded.recipe, ranks, *find_cluster("a100_80gb")).plan();
    const Trained run = train_gpt(folder / cat("run", ranks), ranks, with_matrices(overrides, {"train.duration=2 steps"}));
    ASSERT_EQ(run.errors[0], "");
    const ModelBytes& model = plan.stages.front().model;
    EXPECT_EQ(model.optimizer, static_cast<double>(run.state_bytes[0]));
    // Parameters and state; the program also has copies of the loss and its gate.
    EXPECT_NEAR(model.parameters + model.optimizer, static_cast<double>(run.persistent_bytes[0]), 1024);
    const double f = (ranks - 1.0) / ranks;
    EXPECT_DOUBLE_EQ(plan.simulation.traffic.all_reduce, 2 * f * ((4 * kLayers + 2) * kTokens * kWidth + kTokens) * 4);
    const int64_t rows = (kTokens + 15) / 16 * 16;
    EXPECT_DOUBLE_EQ(plan.simulation.traffic.all_gather, f * static_cast<double>(ranks * rows) * 4);
    EXPECT_GT(plan.simulation.exposed_s, 0);
  }
  // As many bytes are sent where sums are scattered, besides gradients of norms and biases, and fewer activations are kept.
  const auto planned = [](bool scatters, const char* recompute = "null") {
    const LoadedRecipe loaded = test::load_text(
        kTensorGpt,
        {cat("sharding={strategy: tensor, sequence_parallel: ", scatters ? "true" : "false", "}"), cat("train.recompute=", recompute)});
    return StepPlanner(loaded.recipe, 2, *find_cluster("a100_80gb")).plan();
  };
  const StepPlan whole = planned(false), scattered = planned(true);
  const StepTraffic &from = whole.simulation.traffic, &to = scattered.simulation.traffic;
  const double sums = (2 * kLayers + 1) * kTokens * kWidth * 4;
  EXPECT_DOUBLE_EQ(to.reduce_scatter, 0.5 * 2 * sums);
  EXPECT_DOUBLE_EQ(to.all_gather - from.all_gather, 0.5 * 2 * sums);
  EXPECT_LT(to.all_reduce, 0.2 * from.all_reduce);
  EXPECT_LT(scattered.stages.front().kept_bytes, 0.95 * whole.stages.front().kept_bytes);
  // Recomputation gathers again what each layer read.
  const StepPlan again = planned(true, "selective");
  EXPECT_DOUBLE_EQ(again.simulation.traffic.all_gather - to.all_gather, 0.5 * (2 * kLayers + 1) * kTokens * kWidth * 4);
  EXPECT_LT(again.stages.front().kept_bytes, 0.9 * planned(false, "selective").stages.front().kept_bytes);
}

/// Runs stop after 3 of 6 steps and continue with another division.
TEST(TensorRanks, ContinueCheckpointsOfAnyDegreeAndStrategy) {
  const auto half = [](std::vector<std::string> overrides) { return with_matrices(std::move(overrides), {"train.duration=3 steps"}); };
  const TemporaryFolder folder;
  const Trained whole = train_gpt(folder / "whole", 1, kSgd);
  struct Case {
    int before, after;
    std::string first, second;
  };
  const std::vector<Case> cases{{2, 1, "tensor", "auto"},   {1, 2, "auto", "tensor"}, {4, 2, "tensor", "tensor"},
                                {2, 4, "tensor", "tensor"}, {2, 2, "tensor", "fsdp"}, {2, 2, "zero1", "tensor"}};
  int number = 0;
  for (const Case& each : cases) {
    SCOPED_TRACE(cat(each.before, " ", each.first, " -> ", each.after, " ", each.second));
    const std::string run = folder / cat("run", ++number);
    const Trained first = train_gpt(run, each.before, half(with_matrices(kSgd, {"sharding=" + each.first})));
    ASSERT_EQ(first.errors[0], "");
    const Trained second = train_gpt(run, each.after, with_matrices(kSgd, {"sharding=" + each.second}));
    ASSERT_EQ(second.errors[0], "");
    ASSERT_EQ(second.losses[0].size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(second.losses[0][i], whole.losses[0][3 + i], kNearSgd);
    for (const auto& [name, values] : whole.parameters) {
      for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(second.parameters.at(name)[i], values[i], 3 * kNearSgd) << name;
    }
  }
}

TEST(TensorRanks, MomentsAreDividedAndContinueToo) {
  const TemporaryFolder folder;
  const Trained whole = train_gpt(folder / "whole", 1);
  train_gpt(folder / "run", 2, {"sharding=tensor", "train.duration=3 steps"});
  const Trained second = train_gpt(folder / "run", 4, {"sharding=tensor"});
  ASSERT_EQ(second.errors[0], "");
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(second.losses[0][i], whole.losses[0][3 + i], kNear);
}

TEST(TensorRanks, RefuseWhatDoesNotGoTogether) {
  const auto error = [](int ranks, const std::vector<std::string>& overrides) {
    const TemporaryFolder folder;
    const std::vector<std::string> errors = train_gpt(folder / "run", ranks, with_matrices({"sharding=tensor"}, overrides)).errors;
    // The first rank that finds the mistake ends the others, whose message names it.
    return *std::find_if(errors.begin(), errors.end() - 1, [](const std::string& each) { return !each.starts_with("rank "); });
  };
  EXPECT_EQ(error(3, {}), "sharding: the attention transformer.h.0.attn has 4 heads, which 3 ranks cannot divide equally");
  EXPECT_EQ(error(2, {"deterministic=true", "train.batch=8", "train.sync_batch_norm=true"}).substr(0, 22), "train.sync_batch_norm:");
  EXPECT_EQ(error(4, {"sharding={strategy: tensor, mesh: {tensor: 2, pipe: 2}}"}).substr(0, 18), "sharding.strategy:");
  EXPECT_EQ(error(4, {"sharding={strategy: zero1, mesh: {tensor: 2, data: 2}}"}),
            "sharding.mesh: besides the ranks that divide matrices, those of zero1 are on one axis of the mesh");
  EXPECT_EQ(error(2, {"model={type: rnn_lm}"}),
            "sharding: tensor parallelism divides the heads of attention, but the model has no attention that it can divide");
}

constexpr std::string_view kData = R"(
recipe: 1
name: tensor
data:
  train: {source: {type: synthetic, samples: 24, values: integer, high: 48}, workers: 1}
  val: {source: {type: synthetic, samples: 6, values: integer, high: 48}}
train:
  duration: 4 steps
  batch: 3
  optimizer: {type: sgd, lr: 0.5, momentum: 0.9}
checkpoint: null
log: {every: 1 step, tensorboard: false}
model: )";

TEST(TensorRanks, DivideGroupedQueriesAndSwiglu) {
  for (const char* model :
       {"{type: llama, num_hidden_layers: 2, hidden_size: 32, intermediate_size: 42, num_attention_heads: 8, num_key_value_heads: 4, "
        "head_dim: 4, vocab_size: 48, block_size: 8, attention_dropout: 0.1, attention_bias: true}",
        "{type: qwen3, num_hidden_layers: 1, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_key_value_heads: 4, "
        "head_dim: 8, vocab_size: 50, block_size: 8, tie_word_embeddings: true}",
        "{type: phi3, num_hidden_layers: 1, hidden_size: 32, intermediate_size: 40, num_attention_heads: 8, num_key_value_heads: 4, "
        "vocab_size: 48, block_size: 8, rope_parameters: {partial_rotary_factor: 0.5}}"}) {
    SCOPED_TRACE(model);
    const std::string recipe = cat(kData, model, "\n");
    const TemporaryFolder folder;
    const Trained one = train_gpt(folder / "one", 1, {}, recipe);
    ASSERT_EQ(one.errors[0], "");
    for (const int ranks : {2, 4})
      expect_near_parameters(one, train_gpt(folder / cat("many", ranks), ranks, {"sharding=tensor"}, recipe), kNearSgd);
  }
}

TEST(TensorRanks, DivideEncoders) {
  const std::vector<std::string> renamed{"data.train.pipeline=[{type: rename, from: input, to: input_ids}]",
                                         "data.val.pipeline=[{type: rename, from: input, to: input_ids}]"};
  for (const char* type : {"bert", "albert", "distilbert"}) {
    SCOPED_TRACE(type);
    const std::string recipe = cat(
        kData, "{type: ", type, ", num_hidden_layers: 2, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, vocab_size: 48, ",
        "max_position_embeddings: 16, sequence_length: 8}\n");
    const TemporaryFolder folder;
    const Trained one = train_gpt(folder / "one", 1, renamed, recipe);
    ASSERT_EQ(one.errors[0], "");
    for (const int ranks : {2, 4})
      expect_near_parameters(one, train_gpt(folder / cat("many", ranks), ranks, {renamed[0], renamed[1], "sharding=tensor"}, recipe),
                             kNearSgd);
  }
}

}  // namespace
}  // namespace galley
