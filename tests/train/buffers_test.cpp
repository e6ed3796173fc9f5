// precision.buffers: running statistics in low precision change nothing but themselves, have their bytes, and are f32 in files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "libcore/tensor/dtype.h"
#include "libcore/train/planned_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kNet = R"(
recipe: 1
name: buffers
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 16}
    - {name: norm, type: batch_norm}
    - {type: relu}
    - {name: fc2, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [12], classes: 3}, workers: 1}
  val: {source: {type: synthetic, samples: 20, shape: [12], classes: 3}}
train: {duration: 12 steps, batch: 16, optimizer: {type: sgd, lr: 0.1, momentum: 0.9}, validate: {every: 6 steps}}
checkpoint: {every: 6 steps}
log: {every: 1 step, tensorboard: false}
)";
constexpr int64_t kChannels = 16;

Trained train_net(const std::string& folder, int ranks, std::vector<std::string> overrides) {
  return train(folder, ranks, std::move(overrides), kNet);
}

bool is_bf16(double value) { return static_cast<double>(float_from_bf16(bf16_from_float(static_cast<float>(value)))) == value; }
bool is_f16(double value) { return static_cast<double>(float_from_f16(f16_from_float(static_cast<float>(value)))) == value; }

TEST(Buffers, AreRoundedAndChangeNothingElse) {
  const TemporaryFolder folder;
  const Trained wide = train_net(folder / "f32", 1, {});
  ASSERT_EQ(wide.errors[0], "");
  const std::vector<double>& variances = wide.parameters.at("norm.running_var");
  EXPECT_FALSE(std::all_of(variances.begin(), variances.end(), is_bf16));
  for (const auto& [name, is_stored] : {std::pair("bf16", &is_bf16), std::pair("f16", &is_f16)}) {
    const Trained narrow = train_net(folder / name, 1, {cat("precision.buffers=", name)});
    ASSERT_EQ(narrow.errors[0], "");
    EXPECT_EQ(narrow.digests, wide.digests) << "training reads no running statistics";
    EXPECT_EQ(narrow.losses, wide.losses);
    EXPECT_NEAR(find_metric(narrow.metrics[0], "loss"), find_metric(wide.metrics[0], "loss"), 0.02);
    const SafetensorsFile weights(folder / name + "/weights.safetensors");
    for (const char* buffer : {"norm.running_mean", "norm.running_var"}) {
      EXPECT_EQ(weights.find(buffer)->dtype_text, "F32");
      const std::vector<double>&rounded = narrow.parameters.at(buffer), &exact = wide.parameters.at(buffer);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_TRUE(is_stored(rounded[i])) << buffer << " " << rounded[i];
        // Twelve roundings by half a unit of the last of 8 bits, of which each step keeps nine tenths.
        EXPECT_NEAR(rounded[i], exact[i], 7.2 * std::abs(exact[i]) / 256 + 1e-3) << buffer;
      }
    }
    EXPECT_EQ(narrow.parameters.at("norm.num_batches_tracked"), wide.parameters.at("norm.num_batches_tracked"));
  }
}

TEST(Buffers, AreApartFromTheDtypeOfActivations) {
  const TemporaryFolder folder;
  const Trained wide = train_net(folder / "f32", 1, {"precision=bf16"});
  const Trained narrow = train_net(folder / "bf16", 1, {"precision={compute: bf16, buffers: f16}"});
  ASSERT_EQ(wide.errors[0] + narrow.errors[0], "");
  EXPECT_EQ(narrow.digests, wide.digests);
  const std::vector<double>& variances = narrow.parameters.at("norm.running_var");
  EXPECT_TRUE(std::all_of(variances.begin(), variances.end(), is_f16));
  EXPECT_FALSE(std::all_of(variances.begin(), variances.end(), is_bf16));
}

TEST(Buffers, TakeHalfTheBytesInRunsAndPlans) {
  const auto bytes = [](const std::vector<std::string>& overrides) {
    const LoadedRecipe loaded = test::load_text(kNet, overrides);
    const TemporaryFolder folder;
    TrainerOptions options;
    options.run = folder / "run";
    options.provenance = "{}";
    Trainer trainer(loaded, "", options);
    Session session(loaded.recipe);
    return std::pair(trainer.plan().persistent_bytes, planned_model(session, {.micro = 16}).other_bytes);
  };
  const auto wide = bytes({}), narrow = bytes({"precision.buffers=bf16"});
  EXPECT_EQ(wide.first - narrow.first, 2 * kChannels * 2);
  EXPECT_EQ(wide.second - narrow.second, 2 * kChannels * 2);
}

TEST(Buffers, ARunContinuesWithAnotherDtype) {
  const TemporaryFolder folder;
  const Trained wide = train_net(folder / "f32", 1, {});
  for (const auto& [first, second] : {std::pair("bf16", "f32"), std::pair("f32", "f16")}) {
    const std::string run = folder / cat(first, second);
    ASSERT_EQ(train_net(run, 1, {"train.duration=6 steps", cat("precision.buffers=", first)}).errors[0], "");
    const Trained continued = train_net(run, 1, {cat("precision.buffers=", second)});
    EXPECT_EQ(continued.errors[0], "");
    EXPECT_EQ(continued.digests, wide.digests);
  }
}

TEST(Buffers, HaveEqualBitsOnAllRanks) {
  const TemporaryFolder folder;
  const std::vector<std::string> common{"deterministic=true", "precision.buffers=bf16"};
  const Trained one = train_net(folder / "one", 1, common);
  for (const auto& [ranks, strategy] : {std::pair(3, "zero1"), std::pair(2, "fsdp"), std::pair(2, "pipeline")}) {
    std::vector<std::string> overrides = common;
    overrides.push_back(cat("sharding.strategy=", strategy));
    const Trained many = train_net(folder / strategy, ranks, overrides);
    EXPECT_EQ(many.errors[0], "") << strategy;
    EXPECT_EQ(many.parameters, one.parameters) << strategy;
    EXPECT_EQ(many.metrics[0], one.metrics[0]) << strategy;
  }
}

TEST(Buffers, AreCopiedToAveragesOrRefused) {
  const TemporaryFolder folder;
  const Trained copied = train_net(folder / "copied", 1, {"precision.buffers=bf16", "train.ema={decay: 0.9, buffers: false}"});
  ASSERT_EQ(copied.errors[0], "");
  EXPECT_EQ(parameters_of(folder / "copied/weights_ema.safetensors").at("norm.running_var"), copied.parameters.at("norm.running_var"));
  const auto error = [&](const std::vector<std::string>& overrides) {
    const LoadedRecipe loaded = test::load_text(kNet, overrides);
    try {
      const Session session(loaded.recipe);
    } catch (const Error& failed) {
      return failed.message();
    }
    return std::string();
  };
  EXPECT_EQ(error({"precision.buffers=bf16", "train.ema=0.9"}),
            "averages of running statistics change by less than low precision can hold");
  EXPECT_EQ(error({"precision.buffers=f64"}), "this version keeps running statistics only in f32, bf16 and f16");
}

}  // namespace
}  // namespace galley
