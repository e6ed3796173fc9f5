// A rank that has parts of the parameters never holds more than one array of the whole model besides, whether values are drawn or loaded.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/step.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/allocations.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

/// Six blocks of 12 x 256 x 256 parameters. Units of fsdp are blocks.
constexpr std::string_view kInitializedGpt = R"(
recipe: 1
name: initialize
model: {type: gpt, n_layer: 6, n_head: 4, n_embd: 256, vocab_size: 64, block_size: 8}
data: {train: {source: {type: synthetic, samples: 8, values: integer, high: 64}}}
train: {duration: 2 steps, batch: 4, optimizer: {type: sgd, lr: 0.1}}
)";
constexpr int64_t kLargest = 4 * 256 * 256 * 4, kModel = 6 * 12 * 256 * 256 * 4;

struct Initialized {
  std::vector<std::map<std::string, Tensor>> values;  // of each rank
  int64_t peak = 0;                                   // of all ranks, while they initialize
};

Initialized initialize(int ranks, std::vector<std::string> overrides, bool tensor) {
  const LoadedRecipe loaded = test::load_text(kInitializedGpt, std::move(overrides));
  const auto communicators = local_communicators(ranks);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<TrainStep>> steps;
  for (int r = 0; r < ranks; ++r) {
    const Session& session = *sessions.emplace_back(std::make_unique<Session>(loaded.recipe));
    Engine& engine = *engines.emplace_back(std::make_unique<Engine>(session.backend()));
    Communicator* own = communicators[static_cast<size_t>(r)].get();
    steps.push_back(std::make_unique<TrainStep>(
        session, engine, session.usual_types(1, true), BatchPlan{.global = ranks, .micro = 1, .accumulation = 1},
        RunLength{.total_steps = 2, .steps_per_epoch = 2, .samples_per_step = 4}, std::vector<BatchTypes>(), tensor ? nullptr : own,
        ReplicaChoice(), nullptr, tensor ? own : nullptr));
  }
  Initialized held;
  // One rank after the other: the peak is that of one.
  for (auto& step : steps) {
    test::AllocationCount count;
    step->initialize();
    count.stop();
    held.peak = std::max(held.peak, count.peak_bytes());
    std::map<std::string, Tensor>& values = held.values.emplace_back();
    for (const std::string& name : step->store().names()) values[name] = step->store().get(name);
  }
  return held;
}

TEST(Initialize, HoldsOneWholeArrayAtATime) {
  if (!test::counts_allocations()) GTEST_SKIP() << "the sanitizer's allocator cannot be counted";
  const TemporaryFolder folder;
  const std::string file = folder / "w.safetensors", half = folder / "half.safetensors";
  const Initialized one = initialize(1, {"seed=1"}, false);
  std::vector<TensorSource> sources, halves;
  for (const auto& [name, values] : one.values[0]) {
    if (values.dtype() != DType::kF32) continue;  // state of the run
    sources.emplace_back(name, values);
    halves.emplace_back(name, values.to(DType::kF16));
  }
  write_safetensors(file, sources, {});
  write_safetensors(half, halves, {});
  for (const std::string& weights : {std::string(), file, half}) {  // drawn; mapped; converted
    for (const bool tensor : {false, true}) {
      if (weights == (tensor ? file : half)) continue;  // for time
      std::vector<std::string> overrides{tensor ? "sharding=tensor" : "sharding={strategy: fsdp, wrap: {parameters: 500k}}", "seed=1"};
      if (!weights.empty()) overrides.push_back(cat("weights=", weights));
      const Initialized held = initialize(2, overrides, tensor);
      // The array, its conversion, a copy of a part, and what describes the file.
      EXPECT_LT(held.peak, 5 * kLargest / 2 + (512 << 10)) << weights << " " << tensor;
      static_assert(5 * kLargest / 2 + (512 << 10) < kModel / 5);
      EXPECT_GT(held.peak, kLargest / 2);
      if (tensor) continue;
      // All ranges together are all values; padding is 0.
      const auto sums = [](const Initialized& of) {
        std::pair<double, double> sums;
        for (const auto& values : of.values) {
          for (const auto& [name, tensor] : values) {
            for (const double value : tensor.to_doubles()) sums.first += value, sums.second += value * value;
          }
        }
        return sums;
      };
      const auto all = sums(one), ranges = sums(held);
      EXPECT_NEAR(ranges.first, all.first, 1e-6 * all.second) << weights;
      EXPECT_NEAR(ranges.second, all.second, 1e-9 * all.second) << weights;
    }
  }
}

}  // namespace
}  // namespace galley
