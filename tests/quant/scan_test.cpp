// Scans compiled for each instruction set against loops in double: extents exactly, errors to the rounding of sums in float.

#include "libcore/quant/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/targets.h"

namespace galley::quant_test {
namespace {

/// The machine's widest vectors, AVX2 and the baseline.
template <class Body>
void on_each_target(const Body& body) {
  test::with_each_width(body);
  const test::Targets baseline(HWY_STATIC_TARGET);
  body();
}

std::vector<float> values_of(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f) * (3.0f + static_cast<float>(i % 5));
  return values;
}

TEST(Scan, ExtentIsThatOfTheValues) {
  on_each_target([] {
    for (const size_t count : {1u, 63u, 64u, 65u, 1000u}) {
      std::vector<float> values = values_of(count);
      const Extent extent = scan_extent(values.data(), static_cast<int64_t>(count));
      EXPECT_EQ(extent.min, *std::min_element(values.begin(), values.end())) << count;
      EXPECT_EQ(extent.max, *std::max_element(values.begin(), values.end())) << count;
      values[count / 2] = std::numeric_limits<float>::quiet_NaN();
      const Extent broken = scan_extent(values.data(), static_cast<int64_t>(count));
      EXPECT_FALSE(std::isfinite(broken.min) && std::isfinite(broken.max)) << count;
    }
  });
}

TEST(Scan, RoundingErrorIsTheSumOfSquares) {
  on_each_target([] {
    for (const size_t count : {1u, 63u, 64u, 65u, 10000u}) {
      const std::vector<float> values = values_of(count);
      double expected = 0;
      for (const float x : values) {
        const double error = static_cast<double>(x) - 0.25 * std::clamp(std::nearbyint(static_cast<double>(x) / 0.25), -20.0, 19.0);
        expected += error * error;
      }
      // 64 sums of at most 64 squares in float, half a unit of the last place each.
      EXPECT_NEAR(scan_rounding_error(values.data(), static_cast<int64_t>(count), 0.25f, -20, 19), expected, 128 * 6e-8 * expected)
          << count;
    }
  });
}

TEST(Scan, SquareErrorOfAUniformBinIsItsIntegral) {
  on_each_target([] {
    const std::vector<double> counts{3, 0, 5, 1, 2};
    const QuantGrid grid{.step = 0.3, .shift = 0.1, .low = 0, .high = 4};
    const double width = 0.17;
    constexpr int kSamples = 20000;  // of each bin, the middle rule
    double expected = 0;
    for (size_t bin = 0; bin < counts.size(); ++bin) {
      double sum = 0;
      for (int i = 0; i < kSamples; ++i) {
        const double x = (static_cast<double>(bin) + 2 + (i + 0.5) / kSamples) * width;
        const double n = std::clamp(std::nearbyint(x / grid.step - grid.shift), grid.low, grid.high);
        sum += std::pow(x - (n + grid.shift) * grid.step, 2);
      }
      expected += counts[bin] * sum / kSamples;
    }
    EXPECT_NEAR(scan_square_error(counts.data(), static_cast<int64_t>(counts.size()), 2, width, grid), expected, 1e-6 * expected);
  });
}

}  // namespace
}  // namespace galley::quant_test
