// Timing statistics compared with known properties of the distributions of their inputs.

#include "libcore/profiler/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"
#include "libcore/profiler/timer.h"

namespace galley {
namespace {

/// Skewed noise like that of timings: at least `least`, with a tail; the median is least + ln 2 * scale.
double skewed(RandomStream& stream, double least, double scale) { return least - scale * std::log(1 - stream.uniform()); }

TEST(Quantile, LiesBetweenNeighbors) {
  const std::vector<double> values{1, 2, 4, 8};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 1), 8);
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_EQ(quantile(values, 1.0 / 3), 2);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

TEST(Summary, CountsFarOutliers) {
  std::vector<double> values;
  for (int i = 1; i <= 99; ++i) values.push_back(i);
  values.push_back(1000);
  const Summary summary = summarize(values);
  EXPECT_EQ(summary.count, 100);
  EXPECT_EQ(summary.median, 50.5);
  EXPECT_EQ(summary.min, 1);
  EXPECT_EQ(summary.max, 1000);
  EXPECT_EQ(summary.outliers, 1);
}

TEST(MedianInterval, HoldsTheMedianInNineteenOfTwentyRuns) {
  for (const int count : {11, 30, 200}) {
    RandomStream stream(1, "coverage", static_cast<uint64_t>(count));
    constexpr int kRuns = 2000;
    const double median = 1 + std::log(2.0);
    int held = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<double> values;
      for (int i = 0; i < count; ++i) values.push_back(skewed(stream, 1, 1));
      std::sort(values.begin(), values.end());
      const Interval interval = median_interval(values);
      held += interval.low <= median && median <= interval.high;
    }
    // The coverage is at least 95 %; ranks are rounded outwards, so it is a little more. Four standard deviations of 2000 draws are 2 %.
    EXPECT_GE(held, kRuns * 0.93) << count;
    EXPECT_LE(held, kRuns * 0.995) << count << ": wider than necessary";
  }
}

struct Rounds {
  std::vector<double> base, changed, again;
};

Rounds rounds(RandomStream& stream, int count, double factor, double noise) {
  Rounds result;
  double drift = 1;
  for (int i = 0; i < count; ++i) {
    drift *= 1 + 0.01 * (stream.uniform() - 0.5);  // the machine's clock rate drifts
    result.base.push_back(drift * skewed(stream, 1, noise));
    result.changed.push_back(drift * factor * skewed(stream, 1, noise));
    result.again.push_back(drift * skewed(stream, 1, noise));
  }
  return result;
}

TEST(CompareRounds, SeldomTellsEqualProgramsApart) {
  RandomStream stream(2, "equal", 0);
  int wrong = 0, same = 0;
  constexpr int kRuns = 1000;
  for (int run = 0; run < kRuns; ++run) {
    const Rounds r = rounds(stream, 30, 1.0, 0.03);
    const Verdict verdict = compare_rounds(r.base, r.changed, r.again, 0.01).verdict;
    wrong += verdict == Verdict::kFaster || verdict == Verdict::kSlower;
    if (run >= kRuns / 10) continue;
    const Rounds longer = rounds(stream, 300, 1.0, 0.03);
    same += compare_rounds(longer.base, longer.changed, longer.again, 0.01).verdict == Verdict::kSame;
  }
  EXPECT_LE(wrong, kRuns / 100) << "more than 1 % false verdicts";
  EXPECT_GE(same, kRuns / 20) << "with 300 rounds it should decide in many runs";
}

TEST(CompareRounds, DoesNotTakeTheirPlaceInMemoryForAChange) {
  // Instances of one program that differ by 0.7 % for as long as they live: more rounds only confirm the difference.
  RandomStream stream(5, "placed", 0);
  int wrong = 0, wrong_without = 0;
  constexpr int kRuns = 400;
  const auto is_wrong = [](Verdict verdict) { return verdict == Verdict::kFaster || verdict == Verdict::kSlower; };
  for (int run = 0; run < kRuns; ++run) {
    Rounds r = rounds(stream, 200, 1.0, 0.01);
    // The sum of twelve uniform numbers, nearly normal with deviation 1.
    const auto placed = [&] {
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += stream.uniform();
      return std::exp(0.007 * sum);
    };
    for (std::vector<double>* series : {&r.base, &r.changed, &r.again}) {
      const double factor = placed();
      for (double& seconds : *series) seconds *= factor;
    }
    wrong += is_wrong(compare_rounds(r.base, r.changed, r.again, 0.01, 0.02).verdict);
    wrong_without += is_wrong(compare_rounds(r.base, r.changed, r.again, 0.01).verdict);
  }
  EXPECT_LE(wrong, kRuns / 50) << "2 %";
  EXPECT_GT(wrong_without, wrong) << "the guard has no effect";
}

TEST(CompareRounds, FindsAChange) {
  RandomStream stream(3, "changed", 0);
  int slower = 0, faster = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    const Rounds up = rounds(stream, 30, 1.08, 0.03), down = rounds(stream, 30, 0.92, 0.03);
    slower += compare_rounds(up.base, up.changed, up.again, 0.01).verdict == Verdict::kSlower;
    faster += compare_rounds(down.base, down.changed, down.again, 0.01).verdict == Verdict::kFaster;
    EXPECT_TRUE(std::abs(compare_rounds(up.base, up.changed, up.again, 0.01).change - 0.08) <= 0.04);
  }
  EXPECT_GE(slower, kRuns * 0.9);
  EXPECT_GE(faster, kRuns * 0.9);
}

TEST(CompareRounds, DoesNotJudgeByAHandfulOfRounds) {
  const std::vector<double> base{1, 1, 1}, changed{2, 2, 2};
  EXPECT_EQ(compare_rounds(base, changed, base, 0.01).verdict, Verdict::kCannotTell);
}

TEST(Timer, RunsCandidatesInTurnsAndRepeatsShortOnes) {
  std::vector<int> order;
  int calls = 0;
  const std::vector<std::function<void()>> works{[&] { order.push_back(0); }, [&] { order.push_back(1); }};
  const std::vector<Series> series =
      time_interleaved(works, {.relative_error = 0, .min_runs = 5, .max_time_s = 1e-9, .warmup = 1, .min_sample_s = 1e-12});
  ASSERT_EQ(series.size(), 2u);
  // Two initial calls of each candidate, then whole rounds.
  const std::vector<int> begun(order.begin(), order.begin() + 4);
  EXPECT_EQ(begun, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(series[0].seconds.size(), series[1].seconds.size());
  const std::vector<std::function<void()>> tiny{[&] { ++calls; }};
  const Series one =
      time_interleaved(tiny, {.relative_error = 0, .min_runs = 3, .max_time_s = 1e-3, .warmup = 0, .min_sample_s = 1e-5}).front();
  EXPECT_GT(one.repetitions, 10);
  EXPECT_EQ(calls, 2 + one.repetitions * static_cast<int64_t>(one.seconds.size()));
}

TEST(Timer, StopsBetweenRounds) {
  int calls = 0;
  const std::vector<std::function<void()>> works{[&] { ++calls; }, [] {}};
  const auto timed = [&](int stop_after) {
    calls = 0;
    return time_interleaved(
        works, {.relative_error = 0, .min_runs = 1000, .max_time_s = 1000, .warmup = 2, .min_sample_s = 1e-12, .stop = [&, stop_after] {
                  return calls >= stop_after;
                }});
  };
  // Two initial calls, two rounds of warm-up, then rounds that count.
  const std::vector<Series> some = timed(7);
  EXPECT_EQ(some[0].seconds.size(), 3u);
  EXPECT_EQ(some[1].seconds.size(), 3u);
  EXPECT_FALSE(some[0].converged);
  for (const int early : {0, 1, 3}) {
    const std::vector<Series> none = timed(early);
    ASSERT_EQ(none.size(), 2u);
    EXPECT_TRUE(none[0].seconds.empty()) << early;
    EXPECT_LE(calls, early + 2);
  }
}

TEST(Timer, LetsExceptionsPass) {
  const std::vector<std::function<void()>> works{[] { fail(ErrorCode::kNumeric, "no"); }};
  EXPECT_THROW(time_interleaved(works), Error);
}

}  // namespace
}  // namespace galley
