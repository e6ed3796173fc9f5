// A loss that is not finite changes no parameters, in any micro-batch. layer_decay equals groups that set the learning rate of each layer.

#include "libcore/train/step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libcore/device/sim_device.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

/// A linear model on the pixels of two classes: fast, and its loss overflows if a pixel does.
constexpr std::string_view kStepRecipe = R"(
recipe: 1
name: guarded
model:
  type: layers
  input: {shape: [1, 2, 2]}
  layers:
    - {type: flatten}
    - {name: fc, type: linear, out_features: 2}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [1, 2, 2], classes: 2}}
train:
  duration: 10 steps
  batch: {global: 4, micro: 2}
  optimizer: {type: sgd, lr: 0.1, momentum: 0.9}
  ema: 0.9
)";

/// Steps of three micro-batches of two samples.
struct Guarded : test::Stepping {
  explicit Guarded(const Session& session) : Stepping(session, 2, 3) {
    training.reload_with([this](int64_t first) -> const Batch& {
      reloaded.push_back(first);
      return batch_at(first);
    });
  }
  /// A pixel of the batch at position `bad` is infinite; -1: none.
  const Batch& batch_at(int64_t first) {
    batch.first = first;
    batch.fields.at("input").data_as<float>()[5] = first == bad ? INFINITY : 0.5f;
    return batch;
  }
  /// Returns the message of the error, or "".
  std::string step(int64_t number, NodeObserver* observer = nullptr) {
    given = 0;
    std::string message;
    try {
      training.run(number, [&]() -> const Batch& { return batch_at(6 * (number - 1) + 2 * given++); }, observer);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      message = error.message();
    }
    return message;
  }

  int64_t bad = -1, given = 0;
  std::vector<int64_t> reloaded;
};

// For any bad micro-batch: the host enqueues the whole step before it reads, and then reloads only that batch.
TEST(Guard, StopsWithNothingOfTheStepKept) {
  for (const char* device : {"cpu", "sim"}) {
    const LoadedRecipe loaded = test::load_text(kStepRecipe, {std::string("device=") + device});
    const Session session(loaded.recipe);
    for (const int64_t bad : {6, 8, 10}) {
      Guarded at(session);
      EXPECT_EQ(at.step(1), "");
      std::map<std::string, Tensor> before = at.values();
      ASSERT_GE(before.size(), 6u) << "weight and bias, their momentum and their averages";
      at.bad = bad;
      const std::string message = at.step(2);
      EXPECT_NE(message.find("the loss is nan at step 2; first in input input has 0 NaN and 1 infinite of 8 values (first at [1,0,0,1])"),
                std::string::npos)
          << message;
      EXPECT_EQ(at.given, 3);
      EXPECT_EQ(at.reloaded, bad == 10 ? std::vector<int64_t>() : std::vector<int64_t>{bad}) << "the last is there still";
      EXPECT_EQ(at.training.store().get("train.guard.stopped").at(Shape{}), 1);
      for (const auto& [name, tensor] : at.values())
        EXPECT_TRUE(name == "train.guard.stopped" || bit_equal(tensor, before.at(name))) << name << ", batch at " << bad;
    }
  }
}

/// Keeps the device busy from the first node of a step until it is released.
class Busy : public NodeObserver {
 public:
  void before(const Program&, const galley::Step&, Stream& stream) override {
    if (std::exchange(begun_, true)) return;
    sim_enqueue(stream, [this, until = released_.get_future().share()] {
      timed_out = until.wait_for(std::chrono::seconds(10)) == std::future_status::timeout;
    });
  }
  void after(const Program&, const galley::Step&, const NodeOutputs&) override {}
  void release() { released_.set_value(); }
  std::atomic<bool> timed_out = false;

 private:
  bool begun_ = false;
  std::promise<void> released_;
};

// The host continues with the second micro-batch while the device computes the first.
TEST(Guard, TheHostReadsNoLossInsideAStep) {
  const LoadedRecipe loaded = test::load_text(kStepRecipe, {"device=sim"});
  const Session session(loaded.recipe);
  Guarded at(session);
  at.step(1);
  Busy busy;
  int64_t given = 0;
  const TrainStep::Outcome outcome = at.training.run(
      2,
      [&]() -> const Batch& {
        if (given == 1) busy.release();
        return at.batch_at(6 + 2 * given++);
      },
      &busy);
  EXPECT_FALSE(busy.timed_out);
  EXPECT_TRUE(std::isfinite(outcome.loss));
}

// The losses of all micro-batches are complete when the host reads them together.
TEST(Guard, TheLossIsTheMeanOfTheMicroBatches) {
  const LoadedRecipe loaded = test::load_text(kStepRecipe, {"train.optimizer.lr=1e-30"});
  const Session session(loaded.recipe);
  test::Stepping one(session, 2, 1), three(session, 2, 3);
  double sum = 0;
  int given = 0;
  const auto next = [&](test::Stepping& at) -> const Batch& {
    at.batch.fields.at("input").data_as<float>()[5] = static_cast<float>(given++ % 3);
    return at.batch;
  };
  for (int64_t k = 1; k <= 3; ++k) sum += one.training.run(k, [&]() -> const Batch& { return next(one); }).loss;
  EXPECT_EQ(three.training.run(1, [&]() -> const Batch& { return next(three); }).loss, sum / 3);
}

TEST(Guard, IgnoreUpdatesWithWhatThereIs) {
  const LoadedRecipe loaded = test::load_text(kStepRecipe, {"train.guard.nan=ignore"});
  const Session session(loaded.recipe);
  Guarded at(session);
  at.bad = 0;
  EXPECT_EQ(at.step(1), "");
  EXPECT_FALSE(at.training.store().has("train.guard.stopped"));
  EXPECT_TRUE(std::isnan(at.training.store().get("fc.bias").at({0})));
}

TEST(LayerDecay, EqualsGroupsOfTheLayers) {
  constexpr std::string_view kNet = R"(
recipe: 1
name: layers
model:
  type: layers
  input: {shape: [1, 2, 2]}
  layers:
    - {type: flatten}
    - {name: stem, type: linear, out_features: 5}
    - {name: body, repeat: 2, layers: [{name: fc, type: linear, out_features: 5}, {type: relu}]}
    - {name: head, type: linear, out_features: 2}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [1, 2, 2], classes: 2}}
train: {duration: 10 steps, batch: 4}
)";
  const auto after_three = [&](const std::string& optimizer) {
    const LoadedRecipe loaded = test::load_text(kNet, {"train.optimizer={type: sgd, lr: 0.5, " + optimizer + "}"});
    const Session session(loaded.recipe);
    test::Stepping at(session, 4, 1);
    for (int64_t k = 1; k <= 3; ++k) at.training.run(k, [&]() -> const Batch& { return at.batch; });
    return at.values();
  };
  const auto decayed = after_three("layer_decay: 0.5, groups: [{match: '*.bias', lr: 2x}]");
  const auto grouped = after_three(
      "groups: [{match: stem.bias, lr: 0.25x}, {match: stem, lr: 0.125x}, {match: body.0.fc.bias, lr: 0.5x}, {match: body.0, lr: 0.25x}, "
      "{match: body.1.fc.bias, lr: 1x}, {match: body.1, lr: 0.5x}, {match: head.bias, lr: 2x}]");
  const auto plain = after_three("groups: [{match: '*.bias', lr: 2x}]");
  ASSERT_EQ(decayed.size(), 9u);
  for (const auto& [name, values] : grouped) {
    if (name == "train.guard.stopped") continue;
    EXPECT_TRUE(bit_equal(decayed.at(name), values)) << name;
    EXPECT_FALSE(bit_equal(plain.at(name), values)) << name;
  }
}

}  // namespace
}  // namespace galley
