// Data parallel training: N ranks compute what one rank computes, within rounding, with equal bits on all ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"
#include "libcore/recipe/recipe.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

/// 50 samples in batches of 12: the last batch of an epoch has 2, fewer than three ranks.
constexpr std::string_view kRecipe = R"(
recipe: 1
name: ranks
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 16}
    - {name: norm, type: layer_norm}
    - {type: gelu}
    - {type: dropout, p: 0.3}
    - {name: fc2, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 50, shape: [12], classes: 3}, shuffle: true, last_batch: keep, workers: 1}
  val: {source: {type: synthetic, samples: 20, shape: [12], classes: 3}}
train:
  duration: 12 steps
  batch: 12
  optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.01}
  validate: {every: 6 steps}
checkpoint: {every: 6 steps}
log: {every: 1 step, tensorboard: false}
)";

class Quiet : public TrainEvents {
 public:
  void stepped(const TrainRow& row, double, double, bool) override { losses.push_back(row.loss); }
  void evaluated(const EvalRow& row) override { metrics = row.metrics; }
  std::vector<double> losses;
  MetricValues metrics;
};

struct Trained {
  std::vector<std::string> digests;         // of each rank
  std::vector<std::vector<double>> losses;  // of each rank
  std::map<std::string, std::vector<double>> parameters;
  MetricValues metrics;
  std::vector<std::string> errors;
  std::vector<Traffic> traffic;
};

std::map<std::string, std::vector<double>> parameters_of(const std::string& file) {
  std::map<std::string, std::vector<double>> all;
  const SafetensorsFile weights(file);
  for (const SafetensorsEntry& entry : weights.entries()) all[entry.name] = weights.read(entry).to_doubles();
  return all;
}

Trained train(const std::string& folder, int ranks, std::vector<std::string> overrides = {}, std::string_view recipe = kRecipe) {
  const LoadedRecipe loaded = test::load_text(recipe, std::move(overrides));
  auto communicators = local_communicators(ranks);
  Trained run;
  run.digests.resize(static_cast<size_t>(ranks));
  run.losses.resize(static_cast<size_t>(ranks));
  run.errors.resize(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const ThreadShare share(1);
      const auto at = static_cast<size_t>(r);
      try {
        TrainerOptions options;
        options.run = folder;
        options.provenance = "{}";
        options.ranks = ranks > 1 ? communicators[at].get() : nullptr;
        Trainer trainer(loaded, dump_recipe(loaded.recipe, DumpKind::kFull), options);
        Quiet events;
        run.digests[at] = trainer.run(events).digest;
        run.losses[at] = events.losses;
        if (r == 0) run.metrics = events.metrics;
      } catch (const std::exception& error) {
        run.errors[at] = error.what();
        communicators[at]->abort(cat("rank ", r, ": ", error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& communicator : communicators) run.traffic.push_back(communicator->traffic(CollectiveKind::kAllReduce));
  if (run.errors.front().empty()) run.parameters = parameters_of(folder + "/weights.safetensors");
  return run;
}

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

class DataParallel : public testing::TestWithParam<int> {};

TEST_P(DataParallel, ComputesWhatOneRankComputes) {
  const TemporaryFolder one, many;
  const Trained alone = train(one / "run", 1);
  const Trained together = train(many / "run", GetParam(), {"sharding=ddp", "sharding.bucket=256"});
  for (const std::string& error : together.errors) ASSERT_EQ(error, "");
  expect_near(alone, together);
  for (size_t r = 0; r < together.digests.size(); ++r) {
    EXPECT_EQ(together.digests[r], together.digests[0]);
    ASSERT_EQ(together.losses[r].size(), alone.losses[0].size());
    // Every rank reports the loss of the whole batch.
    for (size_t s = 0; s < alone.losses[0].size(); ++s) EXPECT_NEAR(together.losses[r][s], alone.losses[0][s], 1e-5);
  }
  ASSERT_EQ(together.metrics.size(), alone.metrics.size());
  for (size_t m = 0; m < alone.metrics.size(); ++m) EXPECT_NEAR(together.metrics[m].second, alone.metrics[m].second, 1e-3);
}

TEST_P(DataParallel, AccumulatesAndCommunicatesInTheLastMicroBatchOnly) {
  const TemporaryFolder one, many;
  const std::vector<std::string> drop{"data.train.last_batch=wrap", "train.clip=0.5"};
  std::vector<std::string> micro = drop;
  micro.push_back("train.batch.micro=1");
  const Trained alone = train(one / "run", 1, drop);
  const Trained together = train(many / "run", GetParam(), micro);
  for (const std::string& error : together.errors) ASSERT_EQ(error, "");
  expect_near(alone, together);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallel, testing::Values(2, 3, 4));

TEST(DataParallelRun, ContinuesWithAnotherNumberOfRanks) {
  const TemporaryFolder one, many;
  const Trained alone = train(one / "run", 1);
  train(many / "run", 2, {"train.duration=6 steps"});
  const Trained continued = train(many / "run", 3);
  for (const std::string& error : continued.errors) ASSERT_EQ(error, "");
  EXPECT_EQ(continued.losses[0].size(), 6u);
  expect_near(alone, continued);
}

TEST(DataParallelRun, ResultSaysHowItWasTrained) {
  const TemporaryFolder folder;
  train(folder / "run", 2);
  const auto json = nlohmann::json::parse(read_file(folder / "run/result.json"));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["strategy"], "ddp");
  EXPECT_EQ(json["micro"], 6);
}

TEST(DataParallelRun, RefusesWhatItCannotTrain) {
  const TemporaryFolder folder;
  EXPECT_NE(train(folder / "a", 2, {"sharding=none"}).errors[0].find("sharding: none trains on one rank"), std::string::npos);
  EXPECT_NE(train(folder / "b", 5).errors[0].find("not a multiple of the 5 ranks"), std::string::npos);
  EXPECT_NE(train(folder / "c", 2, {"device=ref"}).errors[0].find("device: ref trains on one rank"), std::string::npos);
}

}  // namespace
}  // namespace galley
