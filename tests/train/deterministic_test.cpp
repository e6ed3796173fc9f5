// deterministic: bits depend neither on threads, nor on ranks, nor on the strategy; they are those of the plain step within rounding, and
// the plain step's differ (the negative control). scripts/rank-digests is the long form.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"
#include "libcore/dist/formulas.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/observer.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/as_ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kCommon = R"(
recipe: 1
name: replicas
deterministic: true
loss: {type: cross_entropy}
log: {every: 1 step, tensorboard: false}
checkpoint: null
)";

/// Two linear layers, a layer norm, dropout; the last batch of an epoch has 2 samples, fewer than there are replicas.
constexpr std::string_view kMlp = R"(
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 40}
    - {name: norm, type: layer_norm}
    - {type: gelu}
    - {type: dropout, p: 0.3}
    - {name: fc2, type: linear, out_features: 3}
data:
  train: {source: {type: synthetic, samples: 50, shape: [12], classes: 3}, shuffle: true, last_batch: keep, workers: 1}
  val: {source: {type: synthetic, samples: 21, shape: [12], classes: 3}}
train:
  duration: 5 steps
  batch: 24
  clip: 0.5
  optimizer: {type: adamw, lr: 0.01, weight_decay: 0.01}
  validate: {every: 3 steps}
)";

/// 17 samples: replicas have 2 or 3.
constexpr std::string_view kConvolutions = R"(
model: {type: cifar_resnet20, num_classes: 10}
data:
  train: {source: {type: synthetic, samples: 40, shape: [3, 8, 8], classes: 10}, shuffle: true, last_batch: wrap, workers: 1}
  val: {source: {type: synthetic, samples: 12, shape: [3, 8, 8], classes: 10}}
train:
  duration: 3 steps
  batch: 17
  sync_batch_norm: true
  optimizer: {type: sgd, lr: 0.02, momentum: 0.9, nesterov: true}
  ema: null
)";

constexpr std::string_view kReplicasGpt = R"(
model: {type: gpt, n_layer: 2, n_head: 2, n_embd: 32, block_size: 16, dropout: 0.1}
data:
  tokenizer: char
  train: {source: {type: text, path: TEXT}, slice: 0%..90%}
  val: {from: train, slice: 90%..100%}
train:
  duration: 3 steps
  batch: 12
  clip: 1.0
  optimizer: {type: adamw, lr: 0.01, groups: [{match: ["type:layer_norm"], weight_decay: 0}]}
  validate: {every: 3 steps, samples: 20}
)";

/// Batches end at one of three lengths, each replica's at that of its own samples; the data are in the folder FOLDER.
constexpr std::string_view kLengths = R"(
model:
  type: bert
  hidden_size: 16
  num_hidden_layers: 1
  num_attention_heads: 2
  intermediate_size: 24
  max_position_embeddings: 20
  head: sequence_classification
data:
  tokenizer: {type: wordpiece, path: FOLDER/vocab.txt}
  train:
    source: {type: text_pairs, path: FOLDER/rows.tsv, columns: {label: 1}, max_length: 20}
    pipeline: [{type: rename, from: input, to: input_ids}, {type: bucket, lengths: [6, 12, 20]}]
    shuffle: true
train: {duration: 4 steps, batch: 18, optimizer: {type: adamw, lr: 0.01}}
)";

/// Collectives and messages between programs, as a trace shows them.
class Heard : public NodeObserver {
 public:
  void after(const Program&, const Step&, const NodeOutputs&) override {}
  void communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) override {
    EXPECT_LE(begin_ns, end_ns);
    lines += what + "\n";
  }
  std::string lines = "\n";
};

class Record : public TrainEvents {
 public:
  void stepped(const TrainRow& row, double, double, bool) override {
    numbers.push_back(row.loss);
    numbers.push_back(row.grad_norm);
  }
  void evaluated(const EvalRow& row) override {
    for (const auto& metric : row.metrics) numbers.push_back(metric.second);
  }
  NodeObserver* watch(int64_t step) override { return step == 2 ? &heard : nullptr; }
  std::vector<double> numbers;  // losses, norms of gradients, metrics
  Heard heard;                  // of step 2
};

struct Result {
  std::string tensors;             // RUN/weights.safetensors, parameters and buffers
  std::vector<double> numbers;     // of rank 0
  std::string error;               // of the first rank that has one
  std::vector<Traffic> scattered;  // of each rank
  std::string heard;               // what rank 0 reported to the observer of step 2, one a line
};

/// All bytes of the tensors.
std::string tensors_of(const std::string& file) {
  std::string bytes;
  const SafetensorsFile weights(file);
  for (const SafetensorsEntry& entry : weights.entries()) {
    const Tensor values = weights.read(entry);
    bytes += entry.name;
    bytes.append(static_cast<const char*>(values.data()), static_cast<size_t>(values.bytes()));
  }
  return bytes;
}

void write_pairs(const TemporaryFolder& folder) {
  std::ofstream vocabulary(folder / "vocab.txt"), rows(folder / "rows.tsv");
  for (const char* piece : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) vocabulary << piece << "\n";
  for (int i = 0; i < 20; ++i) vocabulary << "w" << i << "\n";
  for (int row = 0; row < 60; ++row) {
    for (int i = 0; i <= row % 15; ++i) rows << "w" << (row * 7 + i) % 20 << " ";
    rows << "\t" << row % 2 << "\n";
  }
}

std::string text_file(const TemporaryFolder& folder) {
  std::mt19937 random(7);  // the same numbers everywhere
  std::ofstream file(folder / "text.txt");
  const std::vector<std::string> words{"alpha ", "beta ", "gamma ", "of ", "the ", "and\n"};
  for (int i = 0; i < 3000; ++i) file << words[random() % words.size()];
  return folder / "text.txt";
}

struct ReplicaSetting {
  int ranks = 1, threads = 1;
  std::vector<std::string> overrides = {};
};

Result train_in(const std::string& run, std::string_view model, const ReplicaSetting& setting) {
  const TemporaryFolder data;
  std::string text = std::string(kCommon) + std::string(model);
  if (const size_t at = text.find("TEXT"); at != std::string::npos) text.replace(at, 4, text_file(data));
  if (text.find("FOLDER") != std::string::npos) write_pairs(data);
  for (size_t at = text.find("FOLDER"); at != std::string::npos; at = text.find("FOLDER")) text.replace(at, 6, data / "");
  std::vector<std::string> overrides = setting.overrides;
  overrides.push_back(cat("threads=", setting.threads));
  const LoadedRecipe loaded = test::load_text(text, overrides);
  auto communicators = local_communicators(setting.ranks, {.timeout_s = 120});
  std::vector<Record> records(static_cast<size_t>(setting.ranks));
  const std::vector<std::string> errors = as_ranks(
      communicators,
      [&](Communicator& rank) {
        TrainerOptions options;
        options.run = run;
        options.provenance = "{}";
        options.ranks = setting.ranks > 1 ? &rank : nullptr;
        Trainer trainer(loaded, dump_recipe(loaded.recipe, DumpKind::kFull), options);
        trainer.run(records[static_cast<size_t>(rank.rank())]);
      },
      setting.threads);
  Result result;
  for (const std::string& error : errors) {
    if (result.error.empty()) result.error = error;
  }
  result.numbers = records.front().numbers;
  result.heard = records.front().heard.lines;
  for (const auto& communicator : communicators) result.scattered.push_back(communicator->traffic(CollectiveKind::kReduceScatter));
  if (result.error.empty()) result.tensors = tensors_of(run + "/weights.safetensors");
  return result;
}

Result train_replicas(std::string_view model, const ReplicaSetting& setting) {
  const TemporaryFolder folder;
  return train_in(folder / "run", model, setting);
}

std::vector<ReplicaSetting> settings() {
  const std::string units = "sharding.wrap.parameters=200";
  return {{1, 2},
          {1, 3},
          {2, 1, {"sharding=ddp"}},
          {3, 2, {"sharding=zero1"}},
          {4, 1, {"sharding=zero2"}},
          {5, 1, {"sharding=fsdp", units}},
          {3, 2, {"sharding=fsdp", units}},
          {4, 1, {"sharding={strategy: hybrid, mesh: {data: 2, shard: 2}}", units}},
          {6, 2, {"sharding={strategy: hybrid, mesh: {data: 3, shard: 2}}", units}}};  // a group's leaves are two subtrees
}

void expect_equal_runs(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.error, "") << what;
  EXPECT_EQ(a.numbers, b.numbers) << what;
  EXPECT_TRUE(a.tensors == b.tensors) << what;
}

class Deterministic : public testing::TestWithParam<std::string_view> {};

TEST_P(Deterministic, BitsDependOnNeitherThreadsNorRanksNorStrategy) {
  const Result one = train_replicas(GetParam(), {});
  ASSERT_EQ(one.error, "");
  ASSERT_FALSE(one.numbers.empty());
  for (const ReplicaSetting& setting : settings()) {
    const Result other = train_replicas(GetParam(), setting);
    const std::string what = setting.overrides.empty() ? "" : setting.overrides[0];
    expect_equal_runs(other, one, cat(setting.ranks, " ranks, ", setting.threads, " threads, ", what));
    const bool scatters = setting.ranks > 1 && what.find("ddp") == std::string::npos;
    const bool groups = what.find("hybrid") != std::string::npos;
    EXPECT_EQ(other.heard.find("\nall_reduce loss\n") != std::string::npos, setting.ranks > 1) << what << other.heard;
    EXPECT_EQ(other.heard.find("\nreduce_scatter grads.") != std::string::npos, scatters) << what << other.heard;
    EXPECT_EQ(other.heard.find(" between groups\n") != std::string::npos, groups) << what << other.heard;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Deterministic, testing::Values(kMlp, kConvolutions, kReplicasGpt, kLengths), [](const auto& info) {
  return std::string(info.param == kMlp ? "mlp" : info.param == kReplicasGpt ? "gpt" : info.param == kLengths ? "lengths" : "convolutions");
});

/// Six products of equal width; a GPT has two blocks.
constexpr std::string_view kDeepMlp = R"(
model: {type: mlp, num_classes: 4, hidden: [16, 16, 16, 16, 16]}
data:
  train: {source: {type: synthetic, samples: 40}, shuffle: true, last_batch: keep}
  val: {source: {type: synthetic, samples: 12}}
train: {duration: 4 steps, batch: 16, clip: 0.5, optimizer: {type: adamw, lr: 0.01}}
)";

TEST(Pipeline, HasTheBitsOfOneRank) {
  for (const std::string_view model : {kDeepMlp, kReplicasGpt}) {
    const std::vector<std::string> common{"train.batch=16"};
    const Result one = train_replicas(model, {1, 1, common});
    ASSERT_EQ(one.error, "");
    for (const int stages : {2, 4}) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        const std::vector<std::string> here{"train.batch=16", "sharding.strategy=pipeline", cat("sharding.schedule=", schedule)};
        expect_equal_runs(train_replicas(model, {stages, 1, here}), one, cat(stages, " stages, ", schedule));
      }
    }
  }
  // Two parts of the model on each rank, and stages that begin at a module.
  const Result one = train_replicas(kDeepMlp, {});
  const Result interleaved = train_replicas(kDeepMlp, {2, 1, {"sharding.strategy=pipeline", "sharding.schedule=interleaved"}});
  expect_equal_runs(interleaved, one, "interleaved");
  for (const char* message : {"\nsend value", "\nreceive value", " of micro-batch 7\n", "\nwait for receivers\n", "\nbroadcast loss\n"})
    EXPECT_NE(interleaved.heard.find(message), std::string::npos) << message << interleaved.heard;
  EXPECT_EQ(one.heard, "\n");
  const Result gpt = train_replicas(kReplicasGpt, {1, 1, {"train.batch=16"}});
  expect_equal_runs(
      train_replicas(kReplicasGpt, {2, 1, {"train.batch=16", "sharding.strategy=pipeline", "sharding.split=[transformer.h.1]"}}), gpt,
      "split");
}

TEST(Pipeline, CopiesOfStagesHaveTheBitsOfOneRank) {
  const std::vector<std::string> common{"train.batch=16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  for (const std::string_view model : {kDeepMlp, kReplicasGpt}) {  // the GPT's embedding is read by its last stage, too
    const Result one = train_replicas(model, {1, 1, common});
    ASSERT_EQ(one.error, "");
    for (const auto& [ranks, mesh] : {std::pair(4, "{data: 2, pipe: 2}"), std::pair(6, "{data: 3, pipe: 2}")}) {
      expect_equal_runs(train_replicas(model, {ranks, 1, with({"sharding.strategy=pipeline", cat("sharding.mesh=", mesh)})}), one, mesh);
    }
  }
  const Result one = train_replicas(kDeepMlp, {1, 1, common});
  expect_equal_runs(
      train_replicas(kDeepMlp, {4, 1, with({"sharding.strategy=pipeline", "sharding.stages=2", "sharding.schedule=interleaved"})}), one,
      "interleaved, two copies");
}

TEST(Pipeline, StagesUpdateTheirBatchNorms) {
  const std::vector<std::string> common{"train.batch=16", "train.sync_batch_norm=false", "train.ema={decay: 0.9}"};
  const Result one = train_replicas(kConvolutions, {1, 1, common});
  ASSERT_EQ(one.error, "");
  for (const auto& [ranks, mesh] : {std::pair(2, "{pipe: 2}"), std::pair(4, "{data: 2, pipe: 2}")}) {
    std::vector<std::string> here = common;
    here.insert(here.end(), {"sharding.strategy=pipeline", cat("sharding.mesh=", mesh)});
    expect_equal_runs(train_replicas(kConvolutions, {ranks, 1, here}), one, mesh);
  }
}

TEST(Pipeline, MicroBatchesComputeWhatOneRankComputes) {
  const std::vector<std::string> plain{"deterministic=false", "train.batch={global: 16, micro: 4}", "data.train.last_batch=wrap"};
  const Result one = train_replicas(kDeepMlp, {1, 1, plain});
  std::vector<std::string> stages = plain;
  stages.push_back("sharding=pipeline");
  for (const int ranks : {3, 4}) {  // three stages; two copies of two stages
    if (ranks == 4) stages.push_back("sharding.stages=2");
    const Result many = train_replicas(kDeepMlp, {ranks, 1, stages});
    ASSERT_EQ(one.error + many.error, "");
    ASSERT_EQ(one.numbers.size(), many.numbers.size());
    for (size_t i = 0; i < one.numbers.size(); ++i)
      EXPECT_NEAR(one.numbers[i], many.numbers[i], 1e-4 * std::max(1.0, one.numbers[i])) << ranks << " " << i;
  }
}

TEST(Pipeline, AStepOfOneMicroBatch) {
  const std::vector<std::string> plain{"deterministic=false", "train.batch=8"};
  const Result one = train_replicas(kDeepMlp, {1, 1, plain});
  const Result two =
      train_replicas(kDeepMlp, {2, 1, {"deterministic=false", "train.batch={global: 8, micro: 8}", "sharding.strategy=pipeline"}});
  ASSERT_EQ(one.error + two.error, "");
  for (size_t i = 0; i < one.numbers.size(); ++i) EXPECT_NEAR(two.numbers[i], one.numbers[i], 1e-4) << i;
}

TEST(Pipeline, WhatItCannotDoIsAnError) {
  const auto error = [](std::string_view model, int ranks, std::vector<std::string> more) {
    more.push_back("sharding.strategy=pipeline");
    return train_replicas(model, {ranks, 1, std::move(more)}).error;
  };
  EXPECT_NE(error(kConvolutions, 2, {}).find("batch norms cannot normalize by the whole batch"), std::string::npos);
  EXPECT_NE(error(kDeepMlp, 4, {"sharding.mesh={tensor: 2, pipe: 2}"}).find("with a mesh that divides matrices"), std::string::npos);
  EXPECT_NE(error(kDeepMlp, 2, {"train.batch=17"}).find("a pipeline needs a batch of a multiple of 8 samples, not 17"), std::string::npos);
  EXPECT_NE(error(kReplicasGpt, 2, {"train.batch=16", "sharding.split=[transformer.h.7]"})
                .find("'sharding.split' names 'transformer.h.7', but no module of that name computes in the forward pass"),
            std::string::npos);
  EXPECT_NE(error(kDeepMlp, 3, {"sharding.split=[a]"}).find("'sharding.split' names 1 module, but 3 parts begin at 2"), std::string::npos);
  EXPECT_NE(error(kDeepMlp, 7, {"train.batch=16"}).find("the model has 6 places at which a stage can begin, too few for 7 parts"),
            std::string::npos);
}

TEST(Replicas, AModelOfAFewParametersTrains) {  // its sums are arrays that Execution::feed copies
  const std::string_view model = R"(
model: {type: layers, input: {shape: [4]}, layers: [{name: fc, type: linear, out_features: 3}]}
data: {train: {source: {type: synthetic, samples: 48, shape: [4], classes: 3}, workers: 1}}
train: {duration: 6 steps, batch: 16, optimizer: {type: sgd, lr: 0.5}}
)";
  const Result many = train_replicas(model, {}), plain = train_replicas(model, {1, 1, {"deterministic=false"}});
  ASSERT_EQ(many.error + plain.error, "");
  for (size_t i = 0; i < plain.numbers.size(); ++i) EXPECT_NEAR(many.numbers[i], plain.numbers[i], 1e-5) << i;
}

TEST(Replicas, ALossScaleOfAPowerOfTwoChangesNoBit) {
  const std::string scale = "precision.loss_scale=1024";
  const Result mlp = train_replicas(kMlp, {}), deep = train_replicas(kDeepMlp, {}), convolutions = train_replicas(kConvolutions, {});
  expect_equal_runs(train_replicas(kMlp, {1, 2, {scale}}), mlp, "one rank");
  expect_equal_runs(train_replicas(kMlp, {3, 1, {scale, "sharding=fsdp", "sharding.wrap.parameters=200"}}), mlp, "fsdp");
  expect_equal_runs(train_replicas(kConvolutions, {2, 1, {scale, "sharding=zero1"}}), convolutions, "zero1");
  expect_equal_runs(train_replicas(kDeepMlp, {2, 1, {scale, "sharding.strategy=pipeline"}}), deep, "pipeline");
}

TEST(Replicas, ThePlainStepDiffersBetweenRankCounts) {
  std::vector<std::string> seen;
  for (const int ranks : {1, 2, 3, 4}) {
    const Result result = train_replicas(kMlp, {ranks, 1, {"deterministic=false"}});
    ASSERT_EQ(result.error, "");
    EXPECT_EQ(std::count(seen.begin(), seen.end(), result.tensors), 0) << ranks;
    seen.push_back(result.tensors);
  }
}

TEST(Replicas, ComputeWhatThePlainStepComputes) {
  for (const std::string_view model : {kMlp, kConvolutions}) {
    const std::vector<std::string> common{"data.train.last_batch=wrap"};
    std::vector<std::string> plain{common}, replicas{common};
    plain.push_back("deterministic=false");
    if (model == kMlp) {
      for (std::vector<std::string>* list : {&plain, &replicas}) list->push_back("model.layers.3.p=0");  // other random numbers
    }
    const Result a = train_replicas(model, {1, 1, plain}), b = train_replicas(model, {1, 1, replicas});
    ASSERT_EQ(a.error + b.error, "");
    ASSERT_EQ(a.numbers.size(), b.numbers.size());
    for (size_t i = 0; i < a.numbers.size(); ++i)
      EXPECT_NEAR(a.numbers[i], b.numbers[i], 2e-3 * std::max(1.0, std::abs(a.numbers[i]))) << i;
    EXPECT_FALSE(a.tensors == b.tensors);
  }
}

TEST(Replicas, MicroBatchesChangeNothingAndTheirNumberDoes) {
  const Result eight = train_replicas(kMlp, {});
  expect_equal_runs(train_replicas(kMlp, {2, 1, {"train.batch.micro=3"}}), eight, "micro");
  const Result five = train_replicas(kMlp, {1, 1, {"deterministic=5"}});
  EXPECT_FALSE(five.tensors == eight.tensors);
  expect_equal_runs(train_replicas(kMlp, {3, 1, {"deterministic=5", "sharding=zero1"}}), five, "five replicas");
}

TEST(Replicas, RunningStatisticsAreMeansOfThoseOfTheReplicas) {
  // Each replica normalizes its own samples, with and without averages of parameters and buffers.
  const std::vector<std::string> own{"train.sync_batch_norm=false", "train.ema={decay: 0.9}", "train.batch=24"};
  const Result one = train_replicas(kConvolutions, {1, 2, own});
  ASSERT_EQ(one.error, "");
  std::vector<std::string> sharded = own;
  sharded.push_back("sharding=zero2");
  expect_equal_runs(train_replicas(kConvolutions, {3, 1, sharded}), one, "three ranks");
}

TEST(Replicas, ContinueWithAnotherNumberOfRanksAndStrategy) {
  const TemporaryFolder folder;
  const std::vector<std::string> saves{"checkpoint={every: 2 steps}", "train.duration=4 steps"};
  const Result whole = train_in(folder / "whole", kMlp, {1, 1, saves});
  ASSERT_EQ(whole.error, "");
  train_in(folder / "parts", kMlp,
           {3, 1, {"checkpoint={every: 2 steps}", "train.duration=2 steps", "sharding=fsdp", "sharding.wrap.parameters=200"}});
  std::vector<std::string> other = saves;
  other.push_back("sharding=zero1");
  const Result continued = train_in(folder / "parts", kMlp, {2, 2, other});
  EXPECT_EQ(continued.error, "");
  EXPECT_TRUE(continued.tensors == whole.tensors);
}

TEST(Replicas, RanksSendThePartialSumsOfTheirReplicas) {
  // fc1 12 x 40 + 40, norm 40 + 40, fc2 40 x 3 + 3, each at a multiple of 16 elements, in one bucket; fc2.bias may be last.
  for (const int ranks : {2, 3, 4, 5, 8}) {
    const Result run = train_replicas(kMlp, {ranks, 1, {"sharding=zero1", "train.duration=1 steps", "data.val=null"}});
    ASSERT_EQ(run.error, "");
    int64_t most = 0;
    for (const Traffic& traffic : run.scattered) {
      EXPECT_EQ(traffic.calls, 1);
      most = std::max(most, traffic.bytes);
    }
    const auto sent = [&](int64_t elements) {
      const int64_t padded = (elements + 16 * ranks - 1) / (16 * ranks) * 16 * ranks;
      return std::llround(4 * static_cast<double>(padded) * tree_reduce_factor(ranks, 8));
    };
    const int64_t all = 480 + 48 + 48 + 48 + 128;
    EXPECT_TRUE(most == sent(all + 3) || most == sent(all + 16)) << ranks << ": " << most << ", not " << sent(all + 16);
  }
}

TEST(Replicas, TheErrorOfALossNamesATensor) {
  for (const int ranks : {1, 3}) {
    const Result result = train_replicas(kMlp, {ranks, 2, {"train.optimizer={type: sgd, lr: 1e38}", "train.clip=null"}});
    EXPECT_NE(result.error.find("; first in "), std::string::npos) << result.error;
  }
}

TEST(Replicas, WhatDoesNotGoTogetherIsAnError) {
  const auto error = [](int ranks, std::vector<std::string> overrides) {
    return train_replicas(kMlp, {ranks, 1, std::move(overrides)}).error;
  };
  EXPECT_EQ(error(1, {"train.batch=7"}), "deterministic divides a batch into 8 logical replicas, but train.batch.global is 7");
  // Any of the ranks may be the first, and all but rank 0 name themselves.
  EXPECT_TRUE(error(3, {"deterministic=2"}).ends_with("deterministic has 2 logical replicas, which 3 ranks cannot divide"));
  EXPECT_NE(error(2, {"sharding.hook=bf16"}).find("does not go with deterministic"), std::string::npos);
}

TEST(SyncBatchNorm, RanksNormalizeByTheWholeBatch) {
  const std::vector<std::string> plain{"deterministic=false", "train.batch=24"};
  const Result one = train_replicas(kConvolutions, {1, 1, plain});
  ASSERT_EQ(one.error, "");
  for (const int ranks : {2, 3}) {
    const Result many = train_replicas(kConvolutions, {ranks, 1, plain});
    ASSERT_EQ(many.error, "");
    for (size_t i = 0; i < one.numbers.size(); ++i)
      EXPECT_NEAR(many.numbers[i], one.numbers[i], 2e-3 * std::max(1.0, std::abs(one.numbers[i]))) << ranks << " ranks, " << i;
    std::vector<std::string> own = plain;
    own.push_back("train.sync_batch_norm=false");
    EXPECT_GT(std::abs(train_replicas(kConvolutions, {ranks, 1, own}).numbers[0] - one.numbers[0]), 1e-3);  // the first loss
  }
}

}  // namespace
}  // namespace galley
