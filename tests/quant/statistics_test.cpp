// Laws: a histogram's counts depend only on the values, not on their order, batches, files and threads; widening loses no count; a
// histogram that is written and read back is equal.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/quant/observers.h"
#include "tests/quant/values.h"

namespace galley::quant_test {
namespace {

RangeStatistics statistics_of(const std::vector<std::vector<float>>& batches, int64_t samples = 1) {
  RangeStatistics statistics;
  for (const std::vector<float>& batch : batches) statistics.add(batch.data(), samples, static_cast<int64_t>(batch.size()) / samples, "x");
  return statistics;
}

/// Counts by definition: value x is in bin floor(x / width).
void expect_counts(const Histogram& histogram, const std::vector<float>& counted) {
  std::map<int64_t, int64_t> counts;
  int64_t zeros = 0;
  for (float x : counted) {
    ++counts[static_cast<int64_t>(std::floor(static_cast<double>(x) / histogram.width()))];
    zeros += x == 0 ? 1 : 0;
  }
  ASSERT_EQ(histogram.total(), static_cast<int64_t>(counted.size()));
  EXPECT_EQ(histogram.zeros(), zeros);
  EXPECT_EQ(histogram.first(), counts.begin()->first);
  EXPECT_EQ(histogram.last(), counts.rbegin()->first);
  for (int64_t bin = histogram.first(); bin <= histogram.last(); ++bin) ASSERT_EQ(histogram.count(bin), counts[bin]) << "bin " << bin;
}

TEST(Statistics, CountEveryValueAtTheSmallestWidthThatHoldsAll) {
  for (const std::string& name : kCases) {
    const auto all = batches(name);
    const RangeStatistics statistics = statistics_of(all);
    std::vector<float> joined;
    for (const auto& batch : all) joined.insert(joined.end(), batch.begin(), batch.end());
    SCOPED_TRACE(name);
    expect_counts(statistics.histogram(), joined);
    const double low = std::min(0.0, static_cast<double>(*std::min_element(joined.begin(), joined.end()))),
                 high = std::max(0.0, static_cast<double>(*std::max_element(joined.begin(), joined.end())));
    const double width = statistics.histogram().width();
    EXPECT_LT(std::floor(high / width) - std::floor(low / width), Histogram::kBins);
    EXPECT_GE(std::floor(high / (width / 2)) - std::floor(low / (width / 2)), Histogram::kBins) << "half the width would do";
    EXPECT_EQ(statistics.elements(), static_cast<int64_t>(joined.size()));
    EXPECT_EQ(statistics.batches().size(), all.size());
  }
}

TEST(Statistics, WideningKeepsCounts) {
  // Ranges that grow by orders of magnitude on either side and on both, from values near the smallest float to near the largest.
  const std::vector<std::vector<float>> growing{{1e-38f, 0, -1e-39f},
                                                {1e-6f, 2e-6f},
                                                {-3e-3f, 0.5f},
                                                {100, -7},
                                                {-1e6f, 3},
                                                {2e20f, -1e20f},
                                                {std::numeric_limits<float>::max(), -1},
                                                {std::numeric_limits<float>::lowest(), 1}};
  RangeStatistics statistics;
  std::vector<float> all;
  for (size_t used = 0; used < growing.size(); ++used) {
    const std::vector<float>& batch = growing[used];
    statistics.add(batch.data(), static_cast<int64_t>(batch.size()), 1, "x");
    all.insert(all.end(), batch.begin(), batch.end());
    SCOPED_TRACE(used);
    expect_counts(statistics.histogram(), all);
  }
}

TEST(Statistics, OrderBatchesAndThreadsDoNotMatter) {
  auto all = batches("tail");
  const RangeStatistics one = statistics_of(all);
  std::reverse(all.begin(), all.end());
  for (auto& batch : all) std::reverse(batch.begin(), batch.end());
  const RangeStatistics reversed = statistics_of(all);
  EXPECT_TRUE(one.histogram() == reversed.histogram());
  std::vector<std::vector<float>> single;
  for (const auto& batch : all) {
    for (size_t i = 0; i < batch.size(); i += 64)
      single.emplace_back(batch.begin() + static_cast<int64_t>(i), batch.begin() + static_cast<int64_t>(i) + 64);
  }
  EXPECT_TRUE(one.histogram() == statistics_of(single).histogram());
  const int before = compute_threads();
  set_compute_threads(3);
  EXPECT_TRUE(one.histogram() == statistics_of(all, 16).histogram());
  set_compute_threads(before);
}

TEST(Statistics, MergedIsOnePass) {
  for (const std::string& name : kCases) {
    const auto all = batches(name);
    for (size_t cut = 0; cut <= all.size(); ++cut) {
      RangeStatistics first = statistics_of({all.begin(), all.begin() + static_cast<int64_t>(cut)});
      first.merge(statistics_of({all.begin() + static_cast<int64_t>(cut), all.end()}), name);
      EXPECT_TRUE(first == statistics_of(all)) << name << " cut at " << cut;
    }
  }
  // In the other order the moving average differs, the histogram does not.
  const auto all = batches("bell");
  RangeStatistics late = statistics_of({all[3]});
  late.merge(statistics_of({all[0], all[1], all[2]}), "bell");
  EXPECT_TRUE(late.histogram() == statistics_of(all).histogram());
  EXPECT_FALSE(late == statistics_of(all));
}

TEST(Statistics, StrideVisitsAllChannelsAndIsTheSameForEverySample) {
  for (const int64_t row : {1, 100, 16384, 16385, 64 * 56 * 56, 3 * 224 * 224, 2048 * 49, 17 * 19 * 1024}) {
    const int64_t stride = histogram_stride(row);
    EXPECT_LE((row + stride - 1) / stride, 16384) << row;
    EXPECT_EQ(std::gcd(stride, row), 1) << row;
    EXPECT_TRUE(row > 16384 || stride == 1) << row;
  }
  // Two rows of 50000 values: exactly every stride-th value of each is counted; minimum and maximum cover all values.
  const int64_t row = 50000, stride = histogram_stride(row);
  ASSERT_GT(stride, 1);
  std::vector<float> values, counted;
  Uniform u(9);
  for (int64_t i = 0; i < 2 * row; ++i) values.push_back(bell(u));
  values[static_cast<size_t>(stride + 1)] = 77;  // between counted ones
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < row; i += stride) counted.push_back(values[static_cast<size_t>(r * row + i)]);
  }
  const RangeStatistics statistics = statistics_of({values}, 2);
  expect_counts(statistics.histogram(), counted);
  EXPECT_EQ(statistics.range().max, 77);
  EXPECT_EQ(statistics.elements(), 2 * row);
}

TEST(Statistics, NanAndInfinityAreErrorsThatNameTheValue) {
  for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(1000, 1.0f);
    values[640] = bad;
    RangeStatistics statistics;
    try {
      statistics.add(values.data(), 4, 250, "layer1.0.conv2");
      FAIL() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_NE(error.message().find("layer1.0.conv2 has 1 values of 1000 that are not finite"), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("in row 2"), std::string::npos) << error.message();
    }
    EXPECT_TRUE(statistics.empty());
  }
}

TEST(Statistics, ZerosAlone) {
  const RangeStatistics statistics = statistics_of({std::vector<float>(100, 0.0f), std::vector<float>(100, -0.0f)});
  EXPECT_EQ(statistics.histogram().zeros(), 200);
  EXPECT_EQ(statistics.range().min, 0);
  const ObservedRange observed = observe(statistics, {});
  EXPECT_GT(observed.params.scale, 0);
  EXPECT_EQ(observed.sqnr_db, std::numeric_limits<double>::infinity());
}

TEST(Statistics, PartsOfAFileThatContradictEachOtherAreRefused) {
  const auto code_of = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
    return 0;
  };
  const std::vector<int64_t> counts{3, 0, 5};
  const Histogram good(-10, -1, counts, 0);
  EXPECT_EQ(good.total(), 8);
  EXPECT_EQ(code_of([&] { Histogram(-10, -1, counts, 0); }), 0);
  EXPECT_EQ(code_of([&] { Histogram(-127, -1, counts, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(117, -1, counts, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, Histogram::kBins - 2, counts, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, std::numeric_limits<int64_t>::min(), counts, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, std::numeric_limits<int64_t>::max(), counts, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, 0, std::vector<int64_t>(8193, 1), 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, 0, std::vector<int64_t>{1, -1}, 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, 0, std::vector<int64_t>(3, std::numeric_limits<int64_t>::max()), 0); }), 4);
  EXPECT_EQ(code_of([&] { Histogram(-10, -1, counts, 1); }), 4) << "more zeros than values in their bin";
  const float width = 1.0f / 1024;
  const std::vector<BatchRange> range{{-width, 2 * width}};
  EXPECT_EQ(code_of([&] { RangeStatistics(range, good, 8, 1); }), 0);
  EXPECT_EQ(code_of([&] { RangeStatistics(range, good, 7, 1); }), 4);
  EXPECT_EQ(code_of([&] { RangeStatistics(range, good, 8, 0); }), 4);
  EXPECT_EQ(code_of([&] { RangeStatistics({}, good, 8, 1); }), 4);
  EXPECT_EQ(code_of([&] { RangeStatistics({{0, 2 * width}}, good, 8, 1); }), 4) << "values below the smallest";
  EXPECT_EQ(code_of([&] { RangeStatistics({{-width, width / 2}}, good, 8, 1); }), 4) << "values above the largest";
  EXPECT_EQ(code_of([&] { RangeStatistics({{-width, std::nanf("")}}, good, 8, 1); }), 4);
  EXPECT_EQ(code_of([&] { RangeStatistics({{2 * width, -width}}, good, 8, 1); }), 4);
}

}  // namespace
}  // namespace galley::quant_test
