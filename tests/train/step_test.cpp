// A loss that is not finite changes nothing, whichever micro-batch it belongs to.

#include "libcore/train/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/train/stepping.h"

namespace galley {
namespace {

/// A linear model on the pixels of two classes: cheap, and its loss overflows where a pixel does.
constexpr std::string_view kRecipe = R"(
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

/// A step of two micro-batches of two samples; a pixel of micro-batch `bad` is infinite, -1: of none. Returns what the error says, "" without one.
std::string step(test::Stepping& at, int64_t number, int bad) {
  int k = 0;
  float& pixel = at.batch.fields.at("input").data_as<float>()[5];
  const float good = pixel;
  const auto next = [&]() -> const Batch& {
    pixel = k++ == bad ? INFINITY : good;
    return at.batch;
  };
  std::string message;
  try {
    at.training.run(number, next);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    message = error.message();
  }
  pixel = good;
  return message;
}

TEST(Guard, StopsWithNothingOfTheStepKept) {
  const LoadedRecipe loaded = test::load_text(kRecipe, {});
  const Session session(loaded.recipe);
  for (const int bad : {0, 1}) {
    test::Stepping at(session, 2, 2);
    EXPECT_EQ(step(at, 1, -1), "");
    std::map<std::string, Tensor> before = at.values();
    ASSERT_GE(before.size(), 6u) << "weight and bias, their momentum and their averages";
    const std::string message = step(at, 2, bad);
    EXPECT_NE(message.find("the loss is nan at step 2; first in input input has 0 NaN and 1 infinite of 8 values (first at [1,0,0,1])"), std::string::npos) << message;
    EXPECT_EQ(at.training.store().get("train.guard.stopped").at(Shape{}), 1);
    for (const auto& [name, tensor] : at.values()) EXPECT_TRUE(name == "train.guard.stopped" || bit_equal(tensor, before.at(name))) << name << ", micro-batch " << bad;
  }
}

TEST(Guard, IgnoreUpdatesWithWhatThereIs) {
  const LoadedRecipe loaded = test::load_text(kRecipe, {"train.guard.nan=ignore"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 2, 2);
  EXPECT_EQ(step(at, 1, 0), "");
  EXPECT_FALSE(at.training.store().has("train.guard.stopped"));
  EXPECT_TRUE(std::isnan(at.training.store().get("fc.bias").at({0})));
}

}  // namespace
}  // namespace galley
