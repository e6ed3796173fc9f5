// Learning-rate schedules against torch.optim.lr_scheduler (tests/golden/optim/make.py) and against the formulas of the recipe.

#include "libcore/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "libcore/base/error.h"
#include "tests/optim/golden.h"

namespace galley {
namespace {

// torch computes most rates recursively; each of at most 20 steps adds an error of one ulp.
constexpr double kScheduleTolerance = 1e-14;

const RunLength kRun{.total_steps = 20, .steps_per_epoch = 3, .samples_per_step = 8};

template <class Phase>
Component phase(void (*set)(Phase&)) {
  Component component;
  component.type = "phase";
  auto params = std::make_unique<Phase>();
  set(*params);
  component.params = std::move(params);
  return component;
}

Schedule schedule(std::initializer_list<Component> phases, const RunLength& run = kRun) {
  return Schedule(std::vector<Component>(phases), run);
}

Duration steps(double n) { return {n, DurationUnit::kSteps}; }
Duration epochs(double n) { return {n, DurationUnit::kEpochs}; }

TEST(Schedule, AsPyTorch) {
  std::map<std::string, Schedule> ours;
  ours.emplace("linear", schedule({phase<LinearPhase>([](LinearPhase& p) { p.from = Multiple(0.1, true), p.duration = steps(8); })}));
  ours.emplace("cosine", schedule({phase<CosinePhase>([](CosinePhase& p) { p.to = Multiple(0.02, false); })}));
  ours.emplace("step", schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = steps(4), p.gamma = 0.5; })}));
  ours.emplace(
      "multi_step",
      schedule({phase<MultiStepPhase>([](MultiStepPhase& p) { p.milestones = {"3 steps", "7 steps", "8 steps"}, p.gamma = 0.3; })}));
  ours.emplace("exponential", schedule({phase<ExponentialPhase>([](ExponentialPhase& p) { p.gamma = 0.9; })}));
  ours.emplace("polynomial", schedule({phase<PolynomialPhase>([](PolynomialPhase& p) { p.power = 2, p.duration = steps(10); })}));
  ours.emplace(
      "step_by_epoch",
      schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = epochs(2), p.gamma = 0.5, p.update = ScheduleUpdate::kEpoch; })}));
  ours.emplace("exponential_by_epoch",
               schedule({phase<ExponentialPhase>([](ExponentialPhase& p) { p.gamma = 0.9, p.update = ScheduleUpdate::kEpoch; })}));
  ours.emplace("cosine_by_epoch",
               schedule({phase<CosinePhase>([](CosinePhase& p) { p.duration = epochs(6), p.update = ScheduleUpdate::kEpoch; })}));
  ours.emplace("warmup_cosine_by_epoch",
               schedule({phase<LinearPhase>([](LinearPhase& p) {
                           p.from = Multiple(0.1, true), p.duration = epochs(2), p.update = ScheduleUpdate::kEpoch;
                         }),
                         phase<CosinePhase>([](CosinePhase& p) { p.duration = epochs(4), p.update = ScheduleUpdate::kEpoch; })}));
  ours.emplace("warmup_cosine", schedule({phase<LinearPhase>([](LinearPhase& p) { p.from = Multiple(0.1, true), p.duration = steps(5); }),
                                          phase<CosinePhase>([](CosinePhase& p) { p.duration = steps(10); })}));
  const auto golden = read_golden("schedules.txt");
  ASSERT_EQ(golden.size(), ours.size());
  for (const auto& [name, rows] : golden) {
    const std::vector<double>& want = rows.at(0).second;
    ASSERT_GE(want.size(), 12u);
    for (size_t k = 1; k <= want.size(); ++k) {
      const double got = ours.at(name).value(static_cast<int64_t>(k), 0.4);
      EXPECT_FALSE(!(std::fabs(got - want[k - 1]) <= kScheduleTolerance))
          << name << " at update " << k << ": got " << got << ", want " << want[k - 1];
    }
  }
}

TEST(Schedule, WithoutPhasesIsConstant) {
  EXPECT_EQ(Schedule().value(1, 0.3), 0.3);
  EXPECT_EQ(Schedule().value(1000, 0.3), 0.3);
}

// linear {from: 0.25x, duration: 25%}, linear {to: 2x, 5 steps}, cosine (the rest): by the recipe's formulas.
TEST(Schedule, PhasesInSequenceStartWhereTheOneBeforeEnded) {
  const Schedule s = schedule(
      {phase<LinearPhase>([](LinearPhase& p) { p.from = Multiple(0.25, true), p.duration = Duration(25, DurationUnit::kPercent); }),
       phase<LinearPhase>([](LinearPhase& p) { p.to = Multiple(2, true), p.duration = steps(5); }),
       phase<CosinePhase>([](CosinePhase&) {})});
  for (double lr : {0.1, 3.0}) {
    for (int k = 1; k <= 20; ++k) {
      const double want = k <= 5    ? lr * (0.25 + 0.75 * (k - 1) / 5)
                          : k <= 10 ? lr * (1 + 1.0 * (k - 6) / 5)
                                    : lr * 2 * (1 + std::cos(std::numbers::pi * (k - 11) / 10)) / 2;
      EXPECT_FALSE(!(std::fabs(s.value(k, lr) - want) <= kScheduleTolerance)) << "update " << k;
    }
    EXPECT_FALSE(!(std::fabs(s.value(21, lr)) <= kScheduleTolerance)) << "after the end, the end value";
  }
}

// An absolute value is the learning rate of every group; constant keeps the previous rate.
TEST(Schedule, AbsoluteValuesAndConstant) {
  const Schedule s = schedule(
      {phase<LinearPhase>([](LinearPhase& p) { p.from = Multiple(0.5, false), p.to = Multiple(0.25, false), p.duration = steps(2); }),
       phase<ConstantPhase>([](ConstantPhase&) {})});
  EXPECT_DOUBLE_EQ(s.value(1, 7), 0.5);
  EXPECT_DOUBLE_EQ(s.value(2, 7), 0.375);
  EXPECT_DOUBLE_EQ(s.value(3, 7), 0.25);
  EXPECT_DOUBLE_EQ(s.value(19, 7), 0.25);
}

// 10 samples in batches of 4: epochs begin at samples 10, 20, ...; the first updates that begin there or later are the 4th, 6th, 9th.
TEST(Schedule, EpochsNeedNotBeWholeSteps) {
  const RunLength run{.total_steps = 10, .steps_per_epoch = 2.5, .samples_per_step = 4};
  const Schedule s = schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = epochs(1), p.gamma = 0.5; })}, run);
  const double want[] = {1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125};
  for (int k = 1; k <= 10; ++k) EXPECT_EQ(s.value(k, 1), want[k - 1]) << "update " << k;
  EXPECT_EQ(steps_of(epochs(4), run), 10);
  EXPECT_EQ(steps_of(epochs(1), run), 3);
  EXPECT_EQ(steps_of({20, DurationUnit::kSamples}, run), 5);
}

// In a run that ends by time, percent is of the time, so the rate is a function of the share that has passed.
TEST(Schedule, FollowsTheTimeWhereTimeEndsTheRun) {
  const RunLength timed{.steps_per_epoch = 3, .samples_per_step = 8};
  const std::vector<Component> phases{
      phase<LinearPhase>([](LinearPhase& p) { p.from = Multiple(0, true), p.duration = Duration(20, DurationUnit::kPercent); }),
      phase<CosinePhase>([](CosinePhase&) {})};
  const RunLength run = schedule_length(phases, timed);
  EXPECT_TRUE(run.by_time);
  const Schedule s(phases, run);
  const auto at = [&](double share) { return s.value(schedule_position(run, 12345, share), 2); };
  // The resolution is one millionth of the time; the rate goes from 0 to 2 in a fifth of the time.
  constexpr double kTick = 2.0 * 5 / kTimeTicks;
  EXPECT_EQ(at(0), 0);
  EXPECT_NEAR(at(0.1), 1, kTick);
  EXPECT_NEAR(at(0.2), 2, kTick);
  EXPECT_NEAR(at(0.6), 1, kTick);  // half of the cosine's time
  EXPECT_NEAR(at(1), 0, kTick);
  EXPECT_NEAR(at(7), 0, kTick) << "the last step may end after the time";
  // Steps and epochs are not defined for such a run.
  const auto rest = phase<CosinePhase>([](CosinePhase&) {});
  EXPECT_THROW(schedule({phase<ConstantPhase>([](ConstantPhase& p) { p.duration = steps(3); }), rest}, run), Error);
  EXPECT_THROW(schedule({phase<ExponentialPhase>([](ExponentialPhase&) {})}, run), Error);
  EXPECT_THROW(schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = epochs(1); })}, run), Error);
  // A schedule without an end depends on steps, as does a run of known length.
  EXPECT_FALSE(schedule_length({phase<StepPhase>([](StepPhase& p) { p.step_size = epochs(1); })}, timed).by_time);
  EXPECT_FALSE(schedule_length(phases, kRun).by_time);
  EXPECT_EQ(schedule_position(kRun, 12, 0.5), 12);
}

TEST(Schedule, MistakesAreErrors) {
  const auto linear = phase<LinearPhase>([](LinearPhase&) {});
  EXPECT_THROW(schedule({linear, linear}), Error) << "a phase without duration before another";
  EXPECT_THROW(schedule({linear}, RunLength{}), Error) << "the rest of an unknown length";
  EXPECT_THROW(schedule({phase<LinearPhase>([](LinearPhase& p) { p.duration = Duration(60, DurationUnit::kSeconds); })}), Error);
  EXPECT_THROW(schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = epochs(1); })}, RunLength{.total_steps = 9}), Error);
  EXPECT_THROW(schedule({phase<StepPhase>([](StepPhase& p) { p.step_size = steps(0); })}), Error);
  EXPECT_THROW(schedule({phase<MultiStepPhase>([](MultiStepPhase& p) { p.milestones = {"30"}; })}), Error) << "a number without unit";
}

TEST(Schedule, EmaDecayWarmsUp) {
  EXPECT_EQ(ema_decay(0.99, 0, false), 0.99);
  EXPECT_DOUBLE_EQ(ema_decay(0.99, 0, true), 0.1);
  EXPECT_DOUBLE_EQ(ema_decay(0.99, 8, true), 0.5);
  EXPECT_EQ(ema_decay(0.99, 1000000, true), 0.99);
}

}  // namespace
}  // namespace galley
