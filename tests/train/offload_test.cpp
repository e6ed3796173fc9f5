// sharding.offload: training with arrays on the disk has the bits of training in memory, and plans their bytes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "libcore/base/file.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kTraining = R"(
recipe: 1
name: offload
model:
  type: layers
  input: {shape: [192]}
  layers: [{name: fc1, type: linear, out_features: 64}, {type: relu}, {name: fc2, type: linear, out_features: 4}]
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 48, shape: [192], classes: 4}, workers: 1}
  val: {source: {type: synthetic, samples: 12, shape: [192], classes: 4}}
train: {duration: 6 steps, batch: {global: 12, micro: 3}, optimizer: {type: adamw, lr: 1e-3}, ema: {decay: 0.9}, validate: {every: 3 steps}}
checkpoint: {every: 3 steps}
log: {every: 1 step, tensorboard: false}
)";
constexpr int64_t kParameters = 192 * 64 + 64 + 64 * 4 + 4;

struct Ran {
  std::string digest, averages;
  int64_t disk_bytes = 0;
};

Ran train_offloaded(const std::string& folder, int ranks, std::vector<std::string> overrides) {
  const Trained run = train(folder, ranks, std::move(overrides), kTraining);
  for (const std::string& error : run.errors) EXPECT_EQ(error, "");
  Ran ran{run.digests.front(), "", run.disk_bytes.front()};
  ran.averages = read_file(folder + "/weights_ema.safetensors");
  ran.averages.erase(0, ran.averages.size() - kParameters * 4);  // the header holds the recipe
  return ran;
}

TEST(Offload, HasTheBitsOfTrainingInMemory) {
  struct Case {
    int ranks;
    const char* strategy;
  };
  for (const auto& [ranks, strategy] : {Case{1, "auto"}, Case{2, "ddp"}, Case{2, "zero1"}, Case{2, "fsdp"}}) {
    const TemporaryFolder folder;
    const std::string sharding = cat("sharding.strategy=", strategy);
    const Ran memory = train_offloaded(folder / "memory", ranks, {sharding});
    EXPECT_EQ(memory.disk_bytes, 0);
    for (const char* places : {"{optimizer: disk}", "{parameters: disk, gradients: disk, optimizer: disk}"}) {
      const std::string run = folder / cat("disk", std::string_view(places).size());
      const Ran disk = train_offloaded(run, ranks, {sharding, cat("sharding.offload=", places)});
      EXPECT_EQ(disk.digest, memory.digest) << ranks << " " << strategy << " " << places;
      EXPECT_EQ(disk.averages, memory.averages) << ranks << " " << strategy << " " << places;
      // Moments and averages, and with them parameters and sums of gradients: whole pages of each array.
      const bool all = std::string_view(places).size() > 20, divided = std::string_view(strategy) == "fsdp";
      const double whole = static_cast<double>(4 * kParameters * (all ? 5 : 3)) / (divided ? ranks : 1);
      EXPECT_GE(static_cast<double>(disk.disk_bytes), std::string_view(strategy) == "zero1" ? 0.6 * whole : whole);
      EXPECT_LT(static_cast<double>(disk.disk_bytes), 1.1 * whole);
      EXPECT_EQ(list_folder(run).size(), list_folder(folder / "memory").size()) << "no file is left";
    }
  }
}

TEST(Offload, HasTheBitsOfReplicasInMemory) {
  struct Case {
    int ranks;
    const char *strategy, *places;
  };
  const char* most = "{parameters: disk, optimizer: disk}";
  for (const auto& [ranks, strategy, places] :
       {Case{1, "auto", most}, Case{2, "zero1", most}, Case{3, "fsdp", most}, Case{2, "pipeline", "{optimizer: disk}"}}) {
    const TemporaryFolder folder;
    const std::vector<std::string> common{"deterministic=4", cat("sharding.strategy=", strategy)};
    const Ran memory = train_offloaded(folder / "memory", ranks, common);
    std::vector<std::string> offloaded = common;
    offloaded.push_back(cat("sharding.offload=", places));
    const Ran disk = train_offloaded(folder / "disk", ranks, offloaded);
    EXPECT_GT(disk.disk_bytes, 0);
    EXPECT_EQ(disk.digest, memory.digest) << strategy;
    EXPECT_EQ(disk.averages, memory.averages) << strategy;
  }
}

TEST(Offload, ARunContinuesWithAndWithoutIt) {
  const TemporaryFolder folder;
  const Ran once = train_offloaded(folder / "once", 1, {});
  train_offloaded(folder / "run", 1, {"train.duration=3 steps", "sharding.offload={optimizer: disk}"});
  EXPECT_EQ(train_offloaded(folder / "run", 1, {}).digest, once.digest);
}

TEST(Offload, RefusesWhatDoesNotExist) {
  const auto message = [](std::vector<std::string> overrides) {
    const LoadedRecipe loaded = test::load_text(kTraining, std::move(overrides));
    const TemporaryFolder folder;
    TrainerOptions options;
    options.run = folder / "run";
    options.provenance = "{}";
    Trainer trainer(loaded, "", options);
    try {
      trainer.plan();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.message();
    }
    return std::string();
  };
  EXPECT_NE(message({"sharding.offload={gradients: disk}", "train.batch.micro=12"}).find("exist only within a step"), std::string::npos);
  EXPECT_NE(message({"sharding.offload={optimizer: disk}", "device=ref"}).find("device: ref keeps all arrays in its memory"),
            std::string::npos);
  EXPECT_NE(message({"sharding.offload={gradients: disk}", "deterministic=true"}).find("adds the gradients of replicas in memory"),
            std::string::npos);
  EXPECT_EQ(message({"sharding.offload={optimizer: host}"}), "");  // the same memory
}

TEST(Offload, GradientsAreSummedInTheDtypeOfReductions) {
  const TemporaryFolder folder;
  const Ran hook = train_offloaded(folder / "hook", 2, {"sharding={strategy: zero2, hook: bf16}"});
  const Ran reduce = train_offloaded(folder / "reduce", 2, {"sharding.strategy=zero2", "precision.reduce=bf16"});
  const Ran exact = train_offloaded(folder / "exact", 2, {"sharding.strategy=zero2"});
  EXPECT_EQ(reduce.digest, hook.digest);
  EXPECT_NE(reduce.digest, exact.digest);
}

}  // namespace
}  // namespace galley
