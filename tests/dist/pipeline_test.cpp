// Laws: generated schedules run every pass once and never deadlock; the checker finds planted faults; idle time of equal stages equals the
// formula; cuts are optimal.

#include "libcore/dist/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "libcore/base/error.h"
#include "libcore/dist/formulas.h"

namespace galley {
namespace {

TEST(Pipeline, NoScheduleDeadlocks) {
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 16; ++m) {
      for (const PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::kOneForwardOneBackward})
        EXPECT_EQ(check_schedule(pipeline_schedule(schedule, p, m, 1), m, 1), "") << p << " stages, " << m << " micro-batches";
      for (int64_t c = 2; c <= 4 && p > 1; ++c) {
        if (m % p != 0) continue;
        EXPECT_EQ(check_schedule(pipeline_schedule(PipelineSchedule::kInterleaved, p, m, c), m, c), "") << p << ' ' << m << ' ' << c;
      }
    }
  }
  EXPECT_THROW(pipeline_schedule(PipelineSchedule::kInterleaved, 4, 6, 2), Error);
}

TEST(Pipeline, FaultsAreFound) {
  auto stages = pipeline_schedule(PipelineSchedule::kOneForwardOneBackward, 3, 4, 1);
  std::swap(stages[2][0], stages[2][1]);  // the backward pass of a micro-batch before its forward pass
  EXPECT_NE(check_schedule(stages, 4, 1).find("deadlock"), std::string::npos);
  stages = pipeline_schedule(PipelineSchedule::kGpipe, 2, 4, 1);
  stages[0].pop_back();
  EXPECT_EQ(check_schedule(stages, 4, 1), "a pass is missing");
  stages[0].push_back(stages[0][0]);
  EXPECT_NE(check_schedule(stages, 4, 1).find("twice"), std::string::npos);
}

TEST(Pipeline, IdleTimeEqualsTheFormula) {
  for (const int64_t p : {2, 4, 8}) {
    for (const int64_t m : {8, 16}) {
      for (const int64_t c : {1, 2}) {
        const auto schedule = c == 1 ? PipelineSchedule::kOneForwardOneBackward : PipelineSchedule::kInterleaved;
        StageTimes times;
        times.forward.assign(static_cast<size_t>(p * c), 1.0 / static_cast<double>(c));
        times.backward.assign(static_cast<size_t>(p * c), 2.0 / static_cast<double>(c));
        const auto timed = time_schedule(pipeline_schedule(schedule, p, m, c), times);
        double end = 0;
        for (const auto& stage : timed) end = std::max(end, stage.back().end);
        const double busy = 3.0 * static_cast<double>(m);
        EXPECT_NEAR((end - busy) / end, pipeline_bubble(p, m, c), 1e-9) << p << ' ' << m << ' ' << c;
      }
    }
  }
}

TEST(Pipeline, StagesHoldWhatTheFormulaSays) {
  for (const int64_t p : {2, 4, 8}) {
    for (const int64_t m : {8, 16}) {
      for (const PipelineSchedule schedule :
           {PipelineSchedule::kGpipe, PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kInterleaved}) {
        const int64_t c = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
        const auto stages = pipeline_schedule(schedule, p, m, c);
        for (size_t s = 0; s < stages.size(); ++s) {
          int64_t held = 0, most = 0;
          for (const PipelinePass& pass : stages[s]) {
            held += pass.backward ? -1 : 1;
            most = std::max(most, held);
          }
          EXPECT_DOUBLE_EQ(static_cast<double>(most) / static_cast<double>(c),
                           held_micro_batches(schedule, static_cast<int64_t>(s), p, m, c))
              << name_of(schedule) << ' ' << s << " of " << p << ", " << m;
        }
      }
    }
  }
}

TEST(Pipeline, CutsAreTheBestOnes) {
  const std::vector<double> costs{3, 1, 4, 1, 5, 9, 2, 6};
  std::vector<bool> may(costs.size(), true);
  may[5] = false;
  for (const int64_t parts : {1, 2, 3, 4}) {
    const std::vector<size_t> cuts = balanced_cuts(costs, may, parts);
    ASSERT_EQ(cuts.size(), static_cast<size_t>(parts));
    const auto largest = [&](const std::vector<size_t>& at) {
      double most = 0;
      for (size_t k = 0; k < at.size(); ++k) {
        const size_t end = k + 1 < at.size() ? at[k + 1] : costs.size();
        most = std::max(most, std::accumulate(costs.begin() + static_cast<long>(at[k]), costs.begin() + static_cast<long>(end), 0.0));
      }
      return most;
    };
    // All subsets of places.
    double best = std::numeric_limits<double>::infinity();
    for (unsigned mask = 0; mask < (1u << 7); ++mask) {
      std::vector<size_t> at{0};
      bool allowed = true;
      for (size_t i = 1; i < costs.size(); ++i) {
        if ((mask >> (i - 1) & 1u) == 0) continue;
        at.push_back(i);
        allowed = allowed && may[i];
      }
      if (allowed && at.size() == static_cast<size_t>(parts)) best = std::min(best, largest(at));
    }
    EXPECT_DOUBLE_EQ(largest(cuts), best) << parts;
  }
  EXPECT_TRUE(balanced_cuts(costs, std::vector<bool>(costs.size(), false), 2).empty());
}

TEST(Pipeline, CutsKeepToWhatFits) {
  const std::vector<double> costs{3, 1, 4, 1, 5, 9, 2, 6};
  const std::vector<bool> may(costs.size(), true);
  // Part k holds at most 2 + k segments, and segment 5 only alone.
  const auto fits = [](int64_t part, size_t begin, size_t end) {
    return static_cast<int64_t>(end - begin) <= 2 + part && (begin > 5 || end <= 5 || end - begin == 1);
  };
  EXPECT_EQ(balanced_cuts(costs, may, 4, fits), (std::vector<size_t>{0, 2, 5, 6}));
  const std::vector<size_t> free = balanced_cuts(costs, may, 4);
  EXPECT_NE(free, (std::vector<size_t>{0, 2, 5, 6}));
  EXPECT_TRUE(balanced_cuts(costs, may, 3, fits).empty());
}

}  // namespace
}  // namespace galley
