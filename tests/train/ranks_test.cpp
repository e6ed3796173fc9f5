// Training on several ranks, as threads: they compute what one rank computes, within rounding, with equal bits on all ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/data/loader.h"
#include "libcore/dist/formulas.h"
#include "libcore/recipe/recipe.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

/// Sums are added in another order; 12 steps amplify the rounding of f32 a little.
void expect_near(const Trained& a, const Trained& b) {
  ASSERT_FALSE(a.parameters.empty());
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, values] : a.parameters) {
    const std::vector<double>& others = b.parameters.at(name);
    ASSERT_EQ(values.size(), others.size());
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], others[i], 2e-5 * std::max(1.0, std::abs(values[i]))) << name << " " << i;
  }
}

void expect_no_errors(const Trained& run) {
  for (const std::string& error : run.errors) ASSERT_EQ(error, "");
}

std::vector<std::string> with(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

using Way = std::tuple<int, const char*>;  // ranks, strategy

/// hybrid divides parameters between two ranks.
std::string two_in_a_group(int ranks) { return cat("sharding.mesh={data: ", ranks / 2, ", shard: 2}"); }

class Ranks : public testing::TestWithParam<Way> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  bool hybrid() const { return std::get<1>(GetParam()) == std::string_view("hybrid"); }
  std::string sharding() const {
    return hybrid() ? cat("sharding={strategy: hybrid, mesh: {data: ", ranks() / 2, ", shard: 2}}")
                    : cat("sharding=", std::get<1>(GetParam()));
  }
  /// Two units: what one linear layer has, and the rest.
  std::string units() const { return "sharding.wrap.parameters=200"; }
};

TEST_P(Ranks, ComputeWhatOneRankComputes) {
  const TemporaryFolder one, many;
  const Trained alone = train(one / "run", 1);
  const Trained together = train(many / "run", ranks(), {sharding(), "sharding.bucket=1KiB", units()});
  expect_no_errors(together);
  expect_near(alone, together);
  for (size_t r = 0; r < together.digests.size(); ++r) {
    EXPECT_EQ(together.digests[r], together.digests[0]);
    ASSERT_EQ(together.losses[r].size(), alone.losses[0].size());
    for (size_t s = 0; s < alone.losses[0].size(); ++s) {  // every rank reports the loss of the whole batch
      EXPECT_NEAR(together.losses[r][s], alone.losses[0][s], 1e-5);
      EXPECT_NEAR(together.norms[r][s], alone.norms[0][s], 1e-5 * std::max(1.0, alone.norms[0][s]));
    }
    ASSERT_EQ(together.metrics[r].size(), alone.metrics[0].size());
    for (size_t m = 0; m < alone.metrics[0].size(); ++m) EXPECT_NEAR(together.metrics[r][m].second, alone.metrics[0][m].second, 1e-4);
  }
}

TEST_P(Ranks, AccumulateAndClipByTheNormOfAllGradients) {
  const TemporaryFolder one, many;
  const std::vector<std::string> wrap{"data.train.last_batch=wrap", "train.clip=0.5", "train.batch.global=12"};
  const Trained alone = train(one / "run", 1, wrap);
  const Trained together = train(many / "run", ranks(), with(wrap, {sharding(), "train.batch.micro=1", units()}));
  expect_no_errors(together);
  EXPECT_GT(*std::max_element(alone.norms[0].begin(), alone.norms[0].end()), 0.5);  // it clips
  expect_near(alone, together);
}

TEST_P(Ranks, KeepAveragesGroupsAndMoments) {
  const TemporaryFolder one, many;
  const std::vector<std::string> adam{"train.optimizer={type: adamw, lr: 0.01, groups: [{match: '*.bias', weight_decay: 0, lr: 2x}]}",
                                      "train.ema={decay: 0.9}"};
  const Trained alone = train(one / "run", 1, adam);
  const Trained together = train(many / "run", ranks(), with(adam, {sharding(), units()}));
  ASSERT_EQ(alone.errors[0], "");
  expect_no_errors(together);
  expect_near(alone, together);
  const auto a = parameters_of(alone.run + "/weights_ema.safetensors"), b = parameters_of(together.run + "/weights_ema.safetensors");
  for (const auto& [name, values] : a) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], b.at(name)[i], 2e-5) << name;
  }
}

TEST_P(Ranks, ScaleTheLossTogether) {
  if (ranks() == 4) GTEST_SKIP() << "3 ranks have shards of unequal size, which is enough";
  const TemporaryFolder one, many;
  const std::vector<std::string> common{"data.train.last_batch=wrap", "train.clip=0.5", "train.batch.global=12"};
  const Trained alone = train(one / "run", 1, common);
  const Trained together =
      train(many / "run", ranks(),
            with(common, {sharding(), "train.batch.micro=1", "sharding.bucket=1KiB", units(), "precision.loss_scale=4096"}));
  expect_no_errors(together);
  expect_near(alone, together);
}

std::string name_of_way(const testing::TestParamInfo<Way>& way) { return cat(std::get<1>(way.param), std::get<0>(way.param)); }
INSTANTIATE_TEST_SUITE_P(All, Ranks, testing::Combine(testing::Values(2, 3, 4), testing::Values("ddp", "zero1", "zero2", "fsdp")),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(Hybrid, Ranks, testing::Combine(testing::Values(4, 6), testing::Values("hybrid")), name_of_way);

TEST(RankTraining, CommunicatesInTheLastMicroBatchOnly) {
  const std::vector<std::string> common{"data.train.last_batch=wrap", "data.val=null", "checkpoint=null"};
  const TemporaryFolder whole, parts;
  const Trained once = train(whole / "run", 2, common);
  const Trained thrice = train(parts / "run", 2, with(common, {"train.batch={global: 12, micro: 2}"}));
  expect_no_errors(once);
  expect_no_errors(thrice);
  // The same gradients; of two more micro-batches in 12 steps the losses (f64) and the number of labels (i64).
  EXPECT_EQ(thrice.reduced[0].calls, once.reduced[0].calls + 12 + 12 * 2);
  int64_t more = 0;
  for (const size_t r : {size_t{0}, size_t{1}}) more += thrice.reduced[r].bytes - once.reduced[r].bytes;
  EXPECT_EQ(more, 12 * 2 * (2 * 8) + 12 * 2 * (2 * 8));
}

TEST(RankTraining, FrozenParametersAreNotReducedAndHaveNoState) {
  const std::vector<std::string> common{"train.validate=null", "checkpoint=null", "train.duration=1 steps"};
  const auto reduced = [&](const std::vector<std::string>& more) {
    const TemporaryFolder folder;
    const Trained run = train(folder / "run", 2, with(common, more));
    EXPECT_EQ(run.errors[0], "");
    return run.reduced[0].bytes + run.reduced[1].bytes;
  };
  // fc1 has 12 * 16 weights and 16 biases: each rank sends half of its gradients, and half of the sums.
  EXPECT_EQ(reduced({}) - reduced({"train.freeze=[{match: 'fc1.*'}]"}), 2 * 4 * (12 * 16 + 16));
}

TEST(RankTraining, RanksDivideTheStateOfTheOptimizer) {
  // fc1 12 x 16 + 16, norm 16 + 16, fc2 16 x 3 + 3, in one bucket: members begin at multiples of 16 elements.
  const int64_t elements = (12 * 16 + 16) + (16 + 16) + (16 * 3 + 3);
  for (const int ranks : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    const Trained run = train(folder / "run", ranks, {ranks > 1 ? "sharding=zero1" : "sharding=auto", "train.duration=1 steps"});
    expect_no_errors(run);
    // fc2.bias may stand anywhere: with its gap, or last and without.
    for (const int64_t bytes : run.state_bytes) {
      const int64_t shard = (elements + 16 * ranks - 1) / (16 * ranks) * 16, padded = (elements + 13 + 16 * ranks - 1) / (16 * ranks) * 16;
      if (ranks == 1) {
        EXPECT_EQ(bytes, 4 * elements);
      } else {
        EXPECT_TRUE(bytes == 4 * shard || bytes == 4 * padded) << bytes;
      }
    }
    if (ranks > 1) {
      EXPECT_EQ(run.scattered[0].bytes, run.state_bytes[0] * (ranks - 1));
    }
  }
}

TEST(RankTraining, IgnoredLabelsDoNotCount) {
  // A third of the labels: ranks have different numbers of labels that count.
  const std::vector<std::string> ignoring{"loss.ignore_index=2", "data.train.last_batch=wrap", "train.duration=4 steps"};
  const TemporaryFolder one;
  const Trained alone = train(one / "run", 1, ignoring);
  ASSERT_EQ(alone.errors[0], "");
  for (const char* sharding : {"sharding=ddp", "sharding=fsdp"}) {
    const TemporaryFolder many;
    const Trained together = train(many / "run", 2, with(ignoring, {sharding}));
    expect_no_errors(together);
    expect_near(alone, together);
    for (size_t s = 0; s < alone.losses[0].size(); ++s) EXPECT_NEAR(together.losses[1][s], alone.losses[0][s], 1e-5);
  }
}

TEST(RankTraining, HooksHalveTheBytesOfGradientsAndRoundThem) {
  const std::vector<std::string> common{"train.validate=null", "checkpoint=null", "train.duration=3 steps"};
  for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
    const std::vector<std::string> here = with(common, {cat("sharding=", strategy)});
    const TemporaryFolder folder;
    const Trained exact = train(folder / "exact", 3, here);
    for (const auto& [hook, digits] : {std::pair("bf16", 8), std::pair("f16", 11)}) {
      const Trained rounded = train(folder / hook, 3, with(here, {cat("sharding.hook={type: ", hook, "}")}));
      expect_no_errors(rounded);
      EXPECT_EQ(rounded.digests[1], rounded.digests[0]);
      if (std::string_view(strategy) != "ddp") {
        EXPECT_EQ(2 * rounded.scattered[0].bytes, exact.scattered[0].bytes);
      } else {
        EXPECT_LT(rounded.reduced[0].bytes, 0.55 * static_cast<double>(exact.reduced[0].bytes));  // and losses
      }
      // Three steps with rate 0.1 and momentum: each gradient, and two partial sums, have relative errors of half a unit.
      double difference = 0;
      for (const auto& [name, values] : exact.parameters) {
        for (size_t i = 0; i < values.size(); ++i) difference = std::max(difference, std::abs(values[i] - rounded.parameters.at(name)[i]));
      }
      EXPECT_GT(difference, 0) << strategy << " " << hook;
      EXPECT_LT(difference, 6 * std::ldexp(1, -digits)) << strategy << " " << hook;
    }
  }
}

/// The mean of the last losses.
double last_losses(const Trained& run, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += run.losses[0][run.losses[0].size() - 1 - i];
  return sum / static_cast<double>(count);
}

TEST(RankTraining, PowerSgdConvergesAsPlainSums) {
  const std::vector<std::string> longer{"train.duration=150 steps", "train.optimizer={type: sgd, lr: 0.03, momentum: 0.9}"};
  const TemporaryFolder plain_folder;
  const Trained plain = train(plain_folder / "run", 3, longer);
  const auto with_hook = [&](const std::string& hook, const char* sharding) {
    const TemporaryFolder folder;
    Trained run = train(folder / "run", 3, with(longer, {cat("sharding.hook=", hook), cat("sharding.strategy=", sharding)}));
    expect_no_errors(run);
    EXPECT_EQ(run.digests[1], run.digests[0]);
    EXPECT_EQ(run.digests[2], run.digests[0]);
    return run;
  };
  const Trained compressed = with_hook("{type: power_sgd, rank: 2}", "ddp"), ranges = with_hook("{type: power_sgd, rank: 2}", "zero1");
  EXPECT_EQ(ranges.losses[0].size(), 150u);
  const double first = plain.losses[0][0], last = last_losses(plain, 30);
  EXPECT_LT(last, 0.5 * first);  // it learns
  for (const Trained* run : {&compressed, &ranges}) EXPECT_LT(last_losses(*run, 30), last + 0.05 * (first - last));
  // Without error feedback what the factors leave out is lost.
  const Trained lossy = with_hook("{type: power_sgd, rank: 2, error_feedback: false}", "ddp");
  EXPECT_GT(last_losses(lossy, 30), last + 0.1 * (first - last));
  // Of fc1 [16, 12] and fc2 [3, 16] the hook sums factors of rank 2: 56 and 38 numbers instead of 192 and 48.
  const auto bytes = [](const Trained& run) {
    int64_t sum = 0;
    for (const Traffic& traffic : run.reduced) sum += traffic.bytes;
    return sum;
  };
  EXPECT_LT(static_cast<double>(bytes(compressed)), 0.65 * static_cast<double>(bytes(plain)));
}

TEST(RankTraining, PowerSgdContinuesWithItsErrors) {
  const std::vector<std::string> hook{"sharding.hook={type: power_sgd, rank: 2}"};
  const std::vector<std::string> half = with(hook, {"train.duration=6 steps"});
  for (const char* sharding : {"sharding.strategy=ddp", "sharding.strategy=zero1"}) {
    const TemporaryFolder whole, parts;
    const Trained once = train(whole / "run", 3, with(hook, {sharding}));
    expect_no_errors(train(parts / "run", 3, with(half, {sharding})));
    const Trained twice = train(parts / "run", 3, with(hook, {sharding}));
    expect_no_errors(twice);
    EXPECT_EQ(twice.digests[0], once.digests[0]) << sharding;
  }
  // Another number of ranks divides the sum of the errors; one rank, and ranks without the hook, have none.
  for (const int ranks : {1, 2}) {
    for (const bool hooked : {true, false}) {
      const TemporaryFolder folder;
      expect_no_errors(train(folder / "run", 3, half));
      expect_no_errors(train(folder / "run", ranks, hooked ? hook : std::vector<std::string>()));
    }
  }
  const TemporaryFolder later;  // errors that the checkpoint does not have are zero
  expect_no_errors(train(later / "run", 3, {"train.duration=6 steps"}));
  expect_no_errors(train(later / "run", 3, hook));
}

TEST(RankTraining, RanksDivideParametersAndGatherThemTwice) {
  // Units by module: fc1 12 x 16 + 16, norm 16 + 16, fc2 16 x 3 + 3.
  for (const int ranks : {2, 3}) {
    std::vector<int64_t> calls_kept;  // of each rank, where gathered parameters are kept for the backward pass
    for (const bool reshard : {false, true}) {
      const TemporaryFolder folder;
      const Trained run = train(folder / "run", ranks,
                                {"sharding=fsdp", "sharding.wrap.match=[fc1, norm, fc2]",
                                 reshard ? "sharding.reshard_after_forward=true" : "sharding.reshard_after_forward=false",
                                 "train.duration=1 steps", "train.validate=null", "checkpoint=null", "data.val=null"});
      expect_no_errors(run);
      int64_t shards = 0;
      for (const int64_t elements : {208, 32, 64}) shards += (elements + 16 * ranks - 1) / (16 * ranks) * 16;
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
        EXPECT_EQ(run.state_bytes[r], 4 * shards);
        EXPECT_EQ(run.scattered[r].bytes, 4 * shards * (ranks - 1));
        EXPECT_EQ(run.scattered[r].calls, 3);
        // In the forward pass, and in the backward pass those whose gradients need them; for the digest and the weights all.
        if (reshard) {
          EXPECT_EQ(run.gathered[r].calls, calls_kept[r] + 2);
        } else {
          calls_kept.push_back(run.gathered[r].calls);
        }
      }
    }
  }
}

TEST(RankTraining, GroupsDivideParametersAndSumGradientsBetweenThem) {
  // As above; two groups of two ranks. Gradients are summed inside a group in each micro-batch, between groups in the last one.
  for (const char* micro : {"train.batch.micro=3", "train.batch.micro=1"}) {
    const TemporaryFolder folder;
    const Trained run =
        train(folder / "run", 4,
              {"sharding=hybrid", two_in_a_group(4), "sharding.wrap.match=[fc1, norm, fc2]", micro, "train.duration=1 steps",
               "data.train.last_batch=wrap", "train.validate=null", "checkpoint=null", "data.val=null"});
    expect_no_errors(run);
    const int64_t passes = micro == std::string_view("train.batch.micro=1") ? 3 : 1;
    int64_t shards = 0;
    for (const int64_t elements : {208, 32, 64}) shards += (elements + 31) / 32 * 16;
    TrafficRule rule{.ranks = 2, .replicas = 2, .micro_batches = passes};
    rule.parameter_bytes = rule.gradient_bytes = 4.0 * 2 * static_cast<double>(shards);
    const StepTraffic planned = data_parallel_traffic(ShardingStrategy::kHybrid, rule);
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(run.state_bytes[r], 4 * shards * (passes > 1 ? 2 : 1));  // momentum, and sums of gradients
      EXPECT_EQ(static_cast<double>(run.scattered[r].bytes), planned.reduce_scatter);
      EXPECT_EQ(run.scattered[r].calls, 3 * passes);
      // Besides losses, norms and counts of labels.
      EXPECT_NEAR(static_cast<double>(run.reduced[r].bytes), planned.all_reduce, 400);
    }
  }
}

TEST(RankTraining, ContinuesWithAnotherNumberOfRanksAndStrategy) {
  struct Half {
    int ranks;
    const char* sharding;
  };
  const TemporaryFolder one;
  const Trained alone = train(one / "run", 1);
  const std::vector<std::pair<Half, Half>> pairs{{{2, "ddp"}, {3, "ddp"}},    {{2, "zero1"}, {3, "ddp"}},  {{3, "ddp"}, {4, "zero2"}},
                                                 {{4, "zero2"}, {1, "auto"}}, {{1, "auto"}, {2, "zero1"}}, {{3, "zero2"}, {2, "zero1"}},
                                                 {{1, "auto"}, {1, "auto"}}};
  for (const auto& [first, second] : pairs) {
    const TemporaryFolder many;
    expect_no_errors(train(many / "run", first.ranks, {"train.duration=6 steps", cat("sharding=", first.sharding)}));
    const Trained continued = train(many / "run", second.ranks, {cat("sharding=", second.sharding)});
    expect_no_errors(continued);
    EXPECT_EQ(continued.losses[0].size(), 6u);
    expect_near(alone, continued);
  }
}

TEST(RankTraining, AContinuedRunHasTheBitsOfAnUninterruptedOne) {
  for (const char* sharding : {"sharding=ddp", "sharding=zero1", "sharding=fsdp"}) {
    const TemporaryFolder whole, parts;
    const Trained once = train(whole / "run", 3, {sharding});
    expect_no_errors(train(parts / "run", 3, {sharding, "train.duration=6 steps"}));
    const Trained twice = train(parts / "run", 3, {sharding});
    EXPECT_EQ(twice.digests[0], once.digests[0]) << sharding;
  }
}

constexpr std::string_view kRanksGpt = R"(
recipe: 1
name: gpt
model: {type: gpt, n_layer: 2, n_head: 2, n_embd: 32, vocab_size: 64, block_size: 16, dropout: 0.1}
data:
  train: {source: {type: synthetic, samples: 24, values: integer, high: 64}, workers: 1}
  val: {source: {type: synthetic, samples: 6, values: integer, high: 64}}
train: {duration: 6 steps, batch: 6, optimizer: {type: adamw, lr: 1e-3}, clip: 1.0}
log: {every: 1 step, tensorboard: false}
)";

TEST(RankTraining, ALanguageModelTrainsAsOnOneRank) {
  const TemporaryFolder one;
  const Trained alone = train(one / "run", 1, {}, kRanksGpt);
  ASSERT_EQ(alone.errors[0], "");
  for (const char* sharding : {"sharding=ddp", "sharding=zero1", "sharding=zero2", "sharding=fsdp"}) {
    const TemporaryFolder many;
    const Trained together = train(many / "run", 3, {sharding, "sharding.bucket=16KiB", "sharding.wrap.parameters=12K"}, kRanksGpt);
    expect_no_errors(together);
    EXPECT_EQ(together.digests[1], together.digests[0]);
    for (size_t s = 0; s < alone.losses[0].size(); ++s) EXPECT_NEAR(together.losses[0][s], alone.losses[0][s], 2e-5);
    for (const MetricValues& metrics : together.metrics) {  // of validation, which ranks divide
      ASSERT_EQ(metrics.size(), alone.metrics[0].size());
      ASSERT_FALSE(metrics.empty());
      for (size_t m = 0; m < metrics.size(); ++m)
        EXPECT_NEAR(metrics[m].second, alone.metrics[0][m].second, 1e-4 * alone.metrics[0][m].second);
    }
    // Adam divides by the root of tiny second moments: its first steps have the size of the rate, whatever the gradient.
    for (const auto& [name, values] : alone.parameters) {
      double difference = 0;
      for (size_t i = 0; i < values.size(); ++i) difference += std::abs(values[i] - together.parameters.at(name)[i]);
      EXPECT_LT(difference / static_cast<double>(values.size()), 2e-5) << name;
    }
  }
}

constexpr std::string_view kImages = R"(
recipe: 1
name: images
model: {type: cifar_resnet20, num_classes: 4}
data:
  train: {source: {type: synthetic, samples: 32}, workers: 1}
  val: {source: {type: synthetic, samples: 10}}
train: {duration: 3 steps, batch: 8, optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}
log: {every: 1 step, tensorboard: false}
)";

TEST(RankTraining, ImagesTrainWithEqualBitsOnAllRanksInEachStrategy) {
  std::vector<Trained> runs;
  std::vector<std::unique_ptr<TemporaryFolder>> folders;
  for (const char* sharding : {"sharding=ddp", "sharding=zero1", "sharding=zero2", "sharding=fsdp"}) {
    folders.push_back(std::make_unique<TemporaryFolder>());
    runs.push_back(train(*folders.back() / "run", 2, {sharding, "sharding.bucket=64KiB", "sharding.wrap.parameters=50K"}, kImages));
    expect_no_errors(runs.back());
    EXPECT_EQ(runs.back().digests[1], runs.back().digests[0]);
    EXPECT_EQ(runs.back().metrics[1], runs.back().metrics[0]);  // with the running statistics of rank 0 on all ranks
  }
  // The order of sums is the same for all strategies, but not that of vectors in which updates are computed.
  for (const Trained& run : runs) expect_near(runs.front(), run);
}

TEST(RankTraining, ANumberThatIsNotFiniteStopsAllRanksAndNamesOne) {
  const TemporaryFolder folder;
  std::string rows = "a,b,label\n";
  for (int i = 0; i < 16; ++i) rows += cat(i == 11 ? "1e30" : std::to_string(i % 5), ",", i % 3, ",", i % 2, "\n");
  write_file(folder / "rows.csv", rows);
  const std::string recipe =
      cat(R"(
recipe: 1
name: rows
model: {type: layers, input: {shape: [2]}, layers: [{name: fc, type: linear, out_features: 1}]}
loss: {type: mse}
data: {train: {source: {type: csv, path: )",
          folder / "rows.csv", R"(, header: true, columns: {dense: [a, b], target: label}}, shuffle: false, workers: 1}}
train: {duration: 4 steps, batch: {global: 8, micro: 2}, optimizer: {type: sgd, lr: 0.1}}
)");
  for (const char* sharding : {"sharding=ddp", "sharding=zero1"}) {
    const Trained run = train(folder / "run", 2, {sharding}, recipe);
    for (const size_t r : {size_t{0}, size_t{1}}) {
      EXPECT_EQ(run.codes[r], ErrorCode::kNumeric);
      EXPECT_NE(run.errors[r].find("at step 2; first in "), std::string::npos) << run.errors[r];
      EXPECT_NE(run.errors[r].find("(rank 1)"), std::string::npos) << run.errors[r];  // row 11 is in the second part of its micro-batch
      EXPECT_EQ(run.errors[r], run.errors[0]);
    }
    const auto json = nlohmann::json::parse(read_file(folder / "run/result.json"));
    EXPECT_EQ(json["stopped"], "nan");
    EXPECT_EQ(json["steps"], 1);
  }
}

/// The first operator of the MLP, flatten, has an image as its value: by the bytes alone it would be a stage.
TEST(RankTraining, EachStageOfAPipelineHasParameters) {
  constexpr std::string_view kDeep = R"(
recipe: 1
name: deep
model: {type: mlp, num_classes: 4, hidden: [16, 16, 16, 16, 16]}
data: {train: {source: {type: synthetic, samples: 16}, workers: 1}}
train: {duration: 1 step, batch: {global: 8, micro: 2}, optimizer: {type: adamw, lr: 0.01}}
log: {tensorboard: false}
)";
  for (const int ranks : {2, 3, 4}) {
    const TemporaryFolder folder;
    const Trained run = train(folder / "run", ranks, {"sharding.strategy=pipeline"}, kDeep);
    ASSERT_EQ(run.errors[0], "");
    for (const int64_t bytes : run.state_bytes) EXPECT_GT(bytes, 0) << ranks;
  }
}

TEST(RankTraining, ResultSaysHowItWasTrained) {
  const TemporaryFolder folder;
  train(folder / "run", 2, {"sharding=zero2"});
  const auto json = nlohmann::json::parse(read_file(folder / "run/result.json"));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["strategy"], "zero2");
  EXPECT_EQ(json["micro"], 6);
}

TEST(RankTraining, EachSampleComesOnceInAnEpoch) {
  for (const char* rule : {"keep", "drop"}) {
    const LoadedRecipe loaded = test::load_text(kRecipe, {cat("data.train.last_batch=", rule)});
    for (const int64_t ranks : {1, 2, 3, 4, 6}) {
      std::multiset<int64_t> seen;
      double shares = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        Session session(loaded.recipe);
        const auto loader = session.training_loader(12 / ranks, 0, {.rank = r, .ranks = ranks});
        while (loader->position() < (std::string_view(rule) == "keep" ? 50 : 48)) {
          const Batch* batch = loader->next();
          shares += loader->share();
          if (loader->share() > 0) seen.insert(batch->indices.begin(), batch->indices.begin() + batch->valid);
        }
      }
      EXPECT_EQ(seen.size(), std::string_view(rule) == "keep" ? 50u : 48u);
      EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size());
      EXPECT_NEAR(shares, std::string_view(rule) == "keep" ? 5 : 4, 1e-12);  // of each batch: 1
    }
  }
}

}  // namespace
}  // namespace galley
