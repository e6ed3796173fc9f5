// Checkpoints that ranks write in parts: any number of ranks, with any strategy, continues from them as if nothing had changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/recipe/recipe.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/checkpoint.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kRankTraining = R"(
recipe: 1
name: ranks
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 32}
    - {name: norm, type: batch_norm}
    - {type: gelu}
    - {name: fc2, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 48, shape: [12], classes: 3}, shuffle: true, last_batch: drop, workers: 1}
  val: {source: {type: synthetic, samples: 12, shape: [12], classes: 3}}
train:
  duration: 5 steps
  batch: {global: 12, micro: 1}
  optimizer: {type: adamw, lr: 1e-3, weight_decay: 0.01}
  ema: {decay: 0.9, warmup: false}
  validate: null
checkpoint: {every: 5 steps, keep: {last: 9}}
log: {every: 1 step, tensorboard: false}
)";

/// Norms over a part of a batch differ from those over the whole one, so layer_norm stands for most tests.
std::string with_layer_norm() {
  std::string recipe(kRankTraining);
  return recipe.replace(recipe.find("batch_norm"), 10, "layer_norm");
}

/// With a layer for each of four stages.
std::string with_more_layers() {
  std::string recipe = with_layer_norm();
  const std::string last = "    - {name: fc2,";
  return recipe.insert(recipe.find(last),
                       "    - {name: fc3, type: linear, out_features: 16}\n    - {type: relu}\n"
                       "    - {name: fc4, type: linear, out_features: 16}\n    - {type: relu}\n");
}

struct Job {
  int ranks = 1;
  std::string sharding = "auto";
  std::string str() const { return cat(ranks, " ", sharding); }
  std::string setting() const {
    return sharding == "hybrid" ? cat("sharding={strategy: hybrid, mesh: {data: ", ranks / 2, ", shard: 2}}") : cat("sharding=", sharding);
  }
};

/// The losses of the steps of rank 0.
std::vector<double> train_ranks(const std::string& folder, const Job& job, std::vector<std::string> overrides, const std::string& recipe) {
  overrides.push_back(job.setting());
  overrides.push_back("sharding.wrap.match=[fc1, fc2]");
  overrides.push_back("sharding.bucket=1KiB");
  const Trained run = galley::train(folder, job.ranks, std::move(overrides), recipe);
  for (const std::string& error : run.errors) EXPECT_EQ(error, "") << job.str();
  return run.losses.front();
}

using Arrays = std::map<std::string, std::vector<double>>;

Arrays checkpoint_arrays(const std::string& folder) {
  Arrays all;
  const Checkpoint checkpoint(folder);
  for (const std::string& group : checkpoint.groups())
    checkpoint.each(group, [&](const std::string& name, const Tensor& values) { all[name] = values.to_doubles(); });
  return all;
}

double largest_difference(const Arrays& a, const Arrays& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    if (b.count(name) == 0 || b.at(name).size() != values.size()) {
      ADD_FAILURE() << name;
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) largest = std::max(largest, std::abs(values[i] - b.at(name)[i]));
  }
  return largest;
}

std::vector<Job> all_jobs() {
  std::vector<Job> all{{1, "auto"}};
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (const char* sharding : {"ddp", "zero1", "zero2", "fsdp"}) all.push_back({ranks, sharding});
  }
  all.push_back({4, "hybrid"});
  return all;
}

/// Removes what a finished run wrote besides its checkpoints, so that it can be continued.
void continue_later(const std::string& saved, const std::string& run) {
  std::filesystem::copy(saved, run, std::filesystem::copy_options::recursive);
  remove_tree(run + "/result.json");
  remove_tree(run + "/weights.safetensors");
}

/// From the checkpoint of each job, each job takes 20 more steps: all pairs. With `deterministic` the bits are those of one rank that was
/// not interrupted.
TEST(RankCheckpoints, EachStrategyContinuesFromEachOtherWithEqualBits) {
  const std::vector<std::string> deterministic{"deterministic=true", "train.batch={global: 16}"};
  const auto with = [&](const char* more) { return std::vector<std::string>{deterministic[0], deterministic[1], more}; };
  const std::string recipe = with_more_layers();
  std::vector<Job> jobs = all_jobs();
  for (const Job& job : {Job{2, "pipeline"}, Job{4, "pipeline"}, Job{4, "{strategy: pipeline, stages: 2}"}}) jobs.push_back(job);
  const TemporaryFolder folder;
  // What one rank has after 5 steps, and after 2 and 20 more. Any pair continues for 2 steps; each strategy is once first and once second
  // in a pair that continues for 20.
  struct Whole {
    Arrays parameters, averages, all;
  };
  const auto whole = [](const std::string& run, const std::string& step) {
    return Whole{parameters_of(run + "/weights.safetensors"), parameters_of(run + "/weights_ema.safetensors"),
                 checkpoint_arrays(run + "/checkpoints/step-0000" + step)};
  };
  train_ranks(folder / "short", Job{}, with("train.duration=7 steps"), recipe);
  train_ranks(folder / "long", Job{}, with("train.duration=25 steps"), recipe);
  const Whole two = whole(folder / "short", "07"), twenty = whole(folder / "long", "25");
  const Arrays five = checkpoint_arrays(folder / "long/checkpoints/step-000005");
  for (size_t i = 0; i < jobs.size(); ++i) {
    const std::string saved = folder / "saved";
    train_ranks(saved, jobs[i], deterministic, recipe);
    EXPECT_TRUE(checkpoint_arrays(saved + "/checkpoints/step-000005") == five) << jobs[i].str();
    for (size_t j = 0; j < jobs.size(); ++j) {
      SCOPED_TRACE(jobs[i].str() + " to " + jobs[j].str());
      const bool longer = j == (i + 5) % jobs.size();
      const std::string run = folder / "run";
      continue_later(saved, run);
      EXPECT_EQ(train_ranks(run, jobs[j], with(longer ? "train.duration=25 steps" : "train.duration=7 steps"), recipe).size(),
                longer ? 20u : 2u);
      const Whole got = whole(run, longer ? "25" : "07"), &expected = longer ? twenty : two;
      EXPECT_TRUE(got.all == expected.all);
      EXPECT_TRUE(got.parameters == expected.parameters);
      EXPECT_TRUE(got.averages == expected.averages);
      remove_tree(run);
    }
    remove_tree(saved);
  }
}

/// Without it, the loaded tensors are those that were saved, and 20 more steps give the same within rounding.
TEST(RankCheckpoints, EachStrategyContinuesFromAnotherAtAnyNumberOfRanks) {
  const std::string recipe = with_layer_norm();
  const TemporaryFolder alone;
  const std::vector<double> expected = train_ranks(alone / "run", Job{}, {"train.duration=25 steps"}, recipe);
  ASSERT_EQ(expected.size(), 25u);
  const Arrays parameters = parameters_of(alone / "run/weights.safetensors"),
               averages = parameters_of(alone / "run/weights_ema.safetensors");
  const Arrays whole = checkpoint_arrays(alone / "run/checkpoints/step-000005");
  EXPECT_TRUE(whole.contains("fc1.weight.exp_avg_sq") && whole.contains("fc1.weight.ema"));
  EXPECT_FALSE(whole.contains("fc1.weight.grad"));
  const std::vector<Job> jobs = all_jobs();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job &first = jobs[i], &second = jobs[(5 * i + 3) % jobs.size()];
    SCOPED_TRACE(first.str() + " to " + second.str());
    const TemporaryFolder folder;
    train_ranks(folder / "saved", first, {}, recipe);
    const std::string saved = folder / "saved/checkpoints/step-000005";
    EXPECT_EQ(Checkpoint(saved).in_parts(), first.ranks > 1);
    EXPECT_LT(largest_difference(checkpoint_arrays(saved), whole), 1e-6);
    const Arrays exact = parameters_of(folder / "saved/weights.safetensors");
    const std::string run = folder / "run";
    continue_later(folder / "saved", run);
    // No step is left: the weights are what was loaded.
    train_ranks(run, second, {}, recipe);
    EXPECT_EQ(largest_difference(parameters_of(run + "/weights.safetensors"), exact), 0);
    const std::vector<double> losses = train_ranks(run, second, {"train.duration=25 steps", "checkpoint.every=25 steps"}, recipe);
    ASSERT_EQ(losses.size(), 20u);
    for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(losses[s], expected[5 + s], 1e-5);
    // Adam divides by the root of tiny second moments: a difference of rounding may become a part of the rate (1e-3).
    EXPECT_LT(largest_difference(parameters_of(run + "/weights.safetensors"), parameters), 2e-5);
    EXPECT_LT(largest_difference(parameters_of(run + "/weights_ema.safetensors"), averages), 2e-5);
  }
}

TEST(RankCheckpoints, SumsOfGradientsAreNotPartOfThem) {
  // Batches of 12 in micro-batches of 3: 4 ranks accumulate nothing, 2 ranks and one do.
  const std::vector<Job> some{{1, "auto"}, {2, "ddp"}, {2, "fsdp"}, {4, "zero1"}, {4, "fsdp"}, {2, "pipeline"}};
  const std::vector<std::string> micro{"train.batch.micro=3"};
  for (const Job& first : some) {
    for (const Job& second : some) {
      const TemporaryFolder folder;
      train_ranks(folder / "run", first, micro, with_layer_norm());
      EXPECT_FALSE(checkpoint_arrays(folder / "run/checkpoints/step-000005").contains("fc1.weight.grad"));
      EXPECT_EQ(train_ranks(folder / "run", second, {micro[0], "train.duration=6 steps"}, with_layer_norm()).size(), 1u);
    }
  }
}

TEST(RankCheckpoints, StagesHoldAndWriteTheirOwn) {
  const std::vector<std::string> micro{"train.batch.micro=3"};
  const TemporaryFolder alone;
  train_ranks(alone / "run", Job{}, {micro[0], "train.duration=10 steps"}, with_layer_norm());
  const Arrays whole = checkpoint_arrays(alone / "run/checkpoints/step-000005"), end = parameters_of(alone / "run/weights.safetensors");
  for (const Job& job : {Job{2, "pipeline"}, Job{4, "{strategy: pipeline, stages: 2}"}}) {
    const TemporaryFolder folder;
    train_ranks(folder / "run", job, micro, with_layer_norm());
    const std::string saved = folder / "run/checkpoints/step-000005";
    EXPECT_LT(largest_difference(checkpoint_arrays(saved), whole), 1e-6);
    std::map<std::string, int> writers;
    for (int r = 0; r < job.ranks; ++r) {
      const SafetensorsFile part(saved + "/" + part_name(r));
      for (const SafetensorsEntry& entry : part.entries())
        writers[entry.name.substr(0, entry.name.find("weight"))] |= 1 << (r / (job.ranks / 2));
    }
    EXPECT_EQ(writers.at("fc1."), 1);  // the first stage alone has it
    EXPECT_EQ(writers.at("fc2."), 2);
    for (const Job& second : {job, Job{1, "auto"}, Job{2, "fsdp"}}) {
      const std::string run = folder / cat(second.ranks, "-", second.sharding.substr(0, 4));
      std::filesystem::copy(folder / "run", run, std::filesystem::copy_options::recursive);
      EXPECT_EQ(train_ranks(run, second, {micro[0], "train.duration=10 steps"}, with_layer_norm()).size(), 5u);
      EXPECT_LT(largest_difference(parameters_of(run + "/weights.safetensors"), end), 2e-5) << second.str();
    }
  }
}

TEST(RankCheckpoints, PartsHaveEqualShares) {
  for (const char* sharding : {"ddp", "zero2", "fsdp", "hybrid"}) {
    const TemporaryFolder folder;
    train_ranks(folder / "run", {4, sharding}, {}, with_layer_norm());
    std::vector<int64_t> bytes;
    const std::string saved = folder / "run/checkpoints/step-000005";
    for (int r = 0; r < 4; ++r) {
      int64_t sum = 0;
      const SafetensorsFile part(saved + "/" + part_name(r));
      for (const SafetensorsEntry& entry : part.entries()) sum += entry.end - entry.begin;
      bytes.push_back(sum);
    }
    // Of 579 parameters, with two moments and an average each. Ranges of a bucket differ by its padding.
    const int64_t total = bytes[0] + bytes[1] + bytes[2] + bytes[3];
    EXPECT_EQ(total, 4 * 4 * 579);
    for (const int64_t each : bytes) EXPECT_NEAR(static_cast<double>(each), static_cast<double>(total) / 4, total * 0.2) << sharding;
  }
}

TEST(RankCheckpoints, RunningStatisticsAreThoseOfRank0) {
  for (const char* sharding : {"ddp", "zero1", "fsdp"}) {
    const TemporaryFolder whole, parts;
    const Job job{3, sharding};
    train_ranks(whole / "run", job, {"train.duration=10 steps", "train.batch.micro=2"}, std::string(kRankTraining));
    train_ranks(parts / "run", job, {"train.batch.micro=2"}, std::string(kRankTraining));
    train_ranks(parts / "run", job, {"train.duration=10 steps", "train.batch.micro=2"}, std::string(kRankTraining));
    EXPECT_EQ(largest_difference(parameters_of(whole / "run/weights.safetensors"), parameters_of(parts / "run/weights.safetensors")), 0);
    EXPECT_EQ(
        largest_difference(parameters_of(whole / "run/weights_ema.safetensors"), parameters_of(parts / "run/weights_ema.safetensors")), 0);
  }
}

TEST(RankCheckpoints, AveragesOfDividedParametersAreEvaluated) {
  const auto metrics = [](const Job& job) {
    const TemporaryFolder folder;
    train_ranks(folder / "run", job, {"train.validate={every: 5 steps}"}, with_layer_norm());
    return parse_result(read_file(folder / "run/result.json"), "result.json").metrics;
  };
  const MetricValues one = metrics({});
  ASSERT_TRUE(std::any_of(one.begin(), one.end(), [](const auto& metric) { return metric.first == "ema/loss"; }));
  for (const char* sharding : {"zero2", "fsdp"}) {
    const MetricValues three = metrics({3, sharding});
    ASSERT_EQ(three.size(), one.size());
    for (size_t m = 0; m < one.size(); ++m) {
      EXPECT_EQ(three[m].first, one[m].first);
      EXPECT_NEAR(three[m].second, one[m].second, 1e-4) << sharding << " " << one[m].first;
    }
  }
}

}  // namespace
}  // namespace galley
