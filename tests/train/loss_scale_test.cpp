// precision: f16 and precision.loss_scale. Laws: a factor that is a power of two changes no bit of an f32 training; an update whose
// gradients are not finite changes nothing but the factor; the factor follows torch.amp.GradScaler's rule; f16 trains as f32 to rounding.

#include "libcore/passes/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

bool of_loss_scale(const std::string& name) { return name.rfind(kLossScale, 0) == 0; }

struct Trained {
  Trained(std::string_view recipe, const std::vector<std::string>& overrides, int64_t micro = 2, int64_t accumulation = 2)
      : loaded(test::load_text(recipe, overrides)), session(loaded.recipe), at(session, micro, accumulation) {}
  TrainStep::Outcome step(int64_t number) {
    return at.training.run(number, [&]() -> const Batch& { return at.batch; });
  }
  double state(const char* name) { return at.training.store().get(name).to_doubles().front(); }
  void set(const char* name, double value) {
    Tensor values(at.training.store().tensor(name).dtype(), Shape{});
    values.from_doubles({value});
    at.training.store().set(name, values);
  }
  /// All state but that of loss scaling.
  std::map<std::string, Tensor> values() {
    std::map<std::string, Tensor> all = at.values();
    std::erase_if(all, [](const auto& item) { return of_loss_scale(item.first); });
    return all;
  }

  LoadedRecipe loaded;
  Session session;
  test::Stepping at;
};

void expect_equal(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(bit_equal(tensor, got.at(name))) << name;
}

class LossScale : public testing::TestWithParam<test::Model> {};
INSTANTIATE_TEST_SUITE_P(Models, LossScale, testing::ValuesIn(test::kModels), [](const auto& info) { return info.param.name; });

// Products with powers of two are exact. `clip` and the recipe's own micro-batches are part of two models.
TEST_P(LossScale, APowerOfTwoChangesNoBit) {
  for (const char* clip : {"train.clip=null", "train.clip={type: value, max: 0.01}"}) {
    Trained plain(GetParam().recipe, {clip}), scaled(GetParam().recipe, {clip, "precision.loss_scale=1024"});
    for (int64_t step = 1; step <= 3; ++step) {
      const TrainStep::Outcome want = plain.step(step), got = scaled.step(step);
      EXPECT_EQ(got.loss, want.loss);
      EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-6 * want.grad_norm);
      EXPECT_EQ(got.loss_scale, 1024.0);
    }
    expect_equal(scaled.values(), plain.values());
    EXPECT_EQ(scaled.state(kAppliedUpdates), 3);
  }
}

TEST_P(LossScale, F16TrainsAsF32ToRounding) {
  Trained wide(GetParam().recipe, {}), narrow(GetParam().recipe, {"precision={compute: f16, loss_scale: 1024}"});
  for (int64_t step = 1; step <= 4; ++step) {
    const TrainStep::Outcome want = wide.step(step), got = narrow.step(step);
    // 11 bits: a relative error of 5e-4 in each value.
    EXPECT_NEAR(got.loss, want.loss, 0.01 * std::abs(want.loss)) << "step " << step;
    EXPECT_NEAR(got.grad_norm, want.grad_norm, 0.03 * want.grad_norm) << "step " << step;
    EXPECT_EQ(got.loss_scale, 1024.0);
  }
}

// With a factor near the largest number of f32, gradients overflow. Statistics of batch norms include the micro-batches before the last.
TEST_P(LossScale, AnUpdateThatOverflowsChangesOnlyTheFactor) {
  for (const int64_t accumulation : {1, 2}) {
    Trained run(GetParam().recipe, {"precision=f16"}, 2, accumulation), other(GetParam().recipe, {"precision=f16"}, 2, accumulation);
    for (Trained* each : {&run, &other}) {
      each->set(kLossScale, 1024);
      for (int64_t step = 1; step <= 2; ++step) each->step(step);
    }
    ASSERT_EQ(run.state(kAppliedUpdates), 2);
    const auto compared = [&](Trained& each) {
      std::map<std::string, Tensor> values = each.values();
      if (accumulation > 1) {
        std::erase_if(values, [](const auto& item) {
          return item.first.find("running_") != std::string::npos || item.first.find("num_batches") != std::string::npos;
        });
      }
      return values;
    };
    run.set(kLossScale, std::ldexp(1.0, 120));
    const TrainStep::Outcome outcome = run.step(3);
    EXPECT_FALSE(std::isfinite(outcome.grad_norm));
    EXPECT_TRUE(std::isfinite(outcome.loss));
    EXPECT_EQ(outcome.loss_scale, std::ldexp(1.0, 119));
    EXPECT_EQ(run.state(kAppliedUpdates), 2);
    EXPECT_EQ(run.state(kLossScaleAge), 0);
    expect_equal(compared(run), compared(other));
    // The sums of the skipped micro-batches are gone: the next update is that of a run that skipped nothing.
    run.set(kLossScale, 1024);
    EXPECT_EQ(run.step(3).loss, other.step(3).loss);
    EXPECT_EQ(run.state(kAppliedUpdates), 3);
    expect_equal(compared(run), compared(other));
  }
}

/// torch.amp.GradScaler: growth_factor 2, backoff_factor 0.5.
TEST(LossScaleRule, FollowsGradScaler) {
  Trained run(test::kPerceptron, {"precision=f16"}, 4, 1);
  double scale = 65536, age = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 2) run.set(kLossScaleAge, age = 1998);
    if (step == 5) run.set(kLossScale, scale = std::ldexp(1.0, 125));
    const bool finite = std::isfinite(run.step(step).grad_norm);
    EXPECT_EQ(finite, step < 5);
    if (!finite) {
      scale *= 0.5;
      age = 0;
    } else if (++age == 2000) {
      scale *= 2;
      age = 0;
    }
    EXPECT_EQ(run.state(kLossScale), scale) << "after step " << step;
    EXPECT_EQ(run.state(kLossScaleAge), age) << "after step " << step;
  }
}

TEST(LossScaleRule, StopsWhereNoFactorHelps) {
  Trained run(test::kPerceptron, {"precision=f16", "train.guard.nan=ignore"}, 4, 1);
  Tensor weight = run.at.training.store().get("fc2.weight");
  weight.from_doubles(std::vector<double>(static_cast<size_t>(weight.elements()), 6e4));  // logits of 16 of them overflow
  run.at.training.store().set("fc2.weight", weight);
  run.set(kLossScale, 1.0 / 1024);
  try {
    run.step(1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_EQ(error.message(), "the gradients are not finite at step 1, with any loss scale down to 0.000488281");
  }
  EXPECT_TRUE(bit_equal(run.at.training.store().get("fc2.weight"), weight));
}

}  // namespace
}  // namespace galley
