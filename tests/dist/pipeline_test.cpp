// Laws: cuts are optimal, also where not every part fits. tests/dist/pipeline_actions_test.cpp checks schedules.

#include "libcore/dist/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace galley {
namespace {

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
