// Laws of the plan before step 1: numbers of parameters, state and steps are those counted by hand; memory is that of the phase that takes
// most.

#include <gtest/gtest.h>

#include <fstream>

#include "libcore/train/trainer.h"
#include "libcore/train/workload.h"
#include "libcore/weights/safetensors.h"
#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

TrainPlan plan_of(std::vector<std::string> overrides, std::string_view recipe = test::kPerceptron) {
  const TemporaryFolder folder;
  const LoadedRecipe loaded = test::load_text(recipe, std::move(overrides));
  Trainer trainer(loaded, "", {.run = folder / "run"});
  return trainer.plan();
}

constexpr int64_t kLinear1 = 16 * 12 + 16, kNorm = 2 * 16, kLinear2 = 3 * 16 + 3, kAll = kLinear1 + kNorm + kLinear2;

TEST(TrainPlan, CountsParametersStateAndSteps) {
  const TrainPlan plan = plan_of({"train.duration=2 epochs", "train.batch={global: 24, micro: 8}"});
  EXPECT_EQ(plan.parameters, kAll);
  EXPECT_EQ(plan.trainable, kAll);
  EXPECT_GE(plan.state_bytes, 2 * 4 * kAll) << "two moments of AdamW";
  EXPECT_EQ(plan.accumulation, 3);
  EXPECT_DOUBLE_EQ(plan.steps_per_epoch, 64.0 / 24) << "batches wrap around the end of the data";
  EXPECT_EQ(plan.total_steps, 6);
  EXPECT_EQ(plan_of({"train.duration=2 epochs", "train.batch=24", "data.train.last_batch=keep"}).steps_per_epoch, 3);
  EXPECT_EQ(plan_of({"train.duration=2 epochs", "train.batch=24", "data.train.last_batch=drop"}).steps_per_epoch, 2);
}

TEST(TrainPlan, AdaptersAreTrainedAndTheBaseIsNot) {
  const TrainPlan plan = plan_of({"lora={match: [fc1], rank: 2, train: [fc2.bias]}"});
  constexpr int64_t kAdapter = 2 * (12 + 16);
  EXPECT_EQ(plan.adapters, 1);
  EXPECT_EQ(plan.parameters, kAll + kAdapter);
  EXPECT_EQ(plan.trainable, kAdapter + 3);
}

/// Batch norms of the base keep their statistics unless lora.train selects them.
TEST(TrainPlan, NormsOfTheBaseKeepTheirStatistics) {
  const LoadedRecipe loaded = test::load_text(test::kConvolutions, {"lora={match: [fc], rank: 2, train: [bn2]}", "train.ema=null"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 4, 1);
  const std::map<std::string, Tensor> before = at.values();
  at.training.run(1, [&]() -> const Batch& { return at.batch; });
  for (const auto& [name, tensor] : at.values()) {
    if (!name.ends_with(".running_mean") && !name.ends_with(".running_var")) continue;
    EXPECT_EQ(bit_equal(tensor, before.at(name)), name.starts_with("bn1.")) << name;
  }
}

/// Weights are loaded one array at a time, each of which may be converted, before the arena is allocated: of both, the larger counts.
TEST(TrainPlan, LoadingMayTakeMoreThanAStep) {
  const TemporaryFolder folder;
  const std::vector<std::string> wide{"model.input.shape=[8192]", "data.train.source.shape=[8192]", "train.batch=1"};
  const TrainPlan small = plan_of(wide);
  EXPECT_EQ(small.planned_peak_bytes, small.base_bytes + small.persistent_bytes + small.scratch_bytes);
  const std::string file = folder / "w.safetensors";
  write_safetensors(file, std::vector<TensorSource>{TensorSource("other", Tensor(DType::kF32, {1}))}, {});
  constexpr int64_t kLargest = 16 * 8192 * 4;
  ASSERT_GT(2 * kLargest, small.scratch_bytes);
  std::vector<std::string> loads = wide;
  loads.push_back("weights=" + file);
  const TrainPlan large = plan_of(loads);
  EXPECT_EQ(large.planned_peak_bytes, large.base_bytes + large.persistent_bytes + 2 * kLargest);
}

/// The arena is that of the largest program. Micro-batches of an update have one that accumulates gradients.
TEST(TrainPlan, TheArenaServesAllPrograms) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {});
  const Session session(loaded.recipe);
  test::Stepping at(session, 4, 3);
  ASSERT_NE(at.training.accumulate_program(), nullptr);
  const int64_t update = at.training.program().scratch_bytes(), accumulate = at.training.accumulate_program()->scratch_bytes();
  EXPECT_EQ(at.training.scratch_bytes(), std::max(update, accumulate));
}

/// A workload holds its parameters and its batch.
TEST(WorkloadPlan, CountsTheBatch) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {});
  const Session session(loaded.recipe);
  const Workload few(session, WorkKind::kForward, 4), many(session, WorkKind::kForward, 4000);
  const int64_t scratch = many.program().scratch_bytes() - few.program().scratch_bytes();
  EXPECT_GE(few.planned_bytes(), 4 * kAll);
  EXPECT_GE(many.planned_bytes() - few.planned_bytes() - scratch, 3996 * 12 * 4) << "12 inputs for each sample";
}

}  // namespace
}  // namespace galley
