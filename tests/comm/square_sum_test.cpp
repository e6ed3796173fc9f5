// Laws: the sum of squares is that of long double within the rounding of double; its bits depend neither on threads nor on how ranks divide
// the array; values that are not finite remain.

#include "libcore/comm/square_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"

namespace galley {
namespace {

/// Values of about 2^-8 to 2^8.
std::vector<float> random_values(size_t count) {
  std::vector<float> values;
  uint64_t x = 88172645463325252ull;
  for (size_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    values.push_back(std::ldexp(static_cast<float>(static_cast<int32_t>(x >> 33)) / 1e9f, static_cast<int>(x >> 25 & 15) - 8));
  }
  return values;
}

uint64_t sum_bits(std::span<const float> values) {
  SquareSum sum;
  sum.add(values);
  return std::bit_cast<uint64_t>(sum.value());
}

TEST(SquareSum, IsThatOfTheNumbers) {
  const std::vector<float> values = random_values(100'003);
  long double expected = 0;
  for (const float value : values) expected += static_cast<long double>(value) * static_cast<long double>(value);
  SquareSum sum;
  sum.add(values);
  EXPECT_NEAR(static_cast<double>(sum.value() / expected), 1, 1e-14);
  SquareSum small;
  small.add(std::vector<float>{3, 4, std::ldexp(1.0f, -140)});  // the square of the last one is below the rounding of the sum
  EXPECT_EQ(small.value(), 25);
  EXPECT_EQ(SquareSum().value(), 0);
  SquareSum tiny;
  tiny.add(std::vector<float>{std::numeric_limits<float>::denorm_min()});
  EXPECT_EQ(tiny.value(), std::ldexp(1.0, -298));
}

TEST(SquareSum, HasTheSameBitsForAnyDivision) {
  const std::vector<float> values = random_values(50'005);
  const uint64_t expected = sum_bits(values);
  for (const int threads : {2, 3, 7}) {
    const ThreadShare share(threads);
    EXPECT_EQ(sum_bits(values), expected) << threads << " threads";
  }
  for (const int64_t cut : {int64_t{16}, int64_t{4096}, int64_t{49'984}}) {
    SquareSum parts;  // the later part first
    parts.add(std::span(values).subspan(static_cast<size_t>(cut)));
    parts.add(std::span(values).first(static_cast<size_t>(cut)));
    EXPECT_EQ(std::bit_cast<uint64_t>(parts.value()), expected) << cut;
  }
  std::vector<float> padded = values;
  padded.resize(padded.size() + 100, 0.0f);
  EXPECT_EQ(sum_bits(padded), expected);
  // The negative control: a plain sum depends on its order.
  double forward = 0, backward = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    forward += std::pow(static_cast<double>(values[i]), 2);
    backward += std::pow(static_cast<double>(values[values.size() - 1 - i]), 2);
  }
  EXPECT_NE(forward, backward);
}

TEST(SquareSum, RanksAddTheirParts) {
  const std::vector<float> values = random_values(48'000);
  const uint64_t expected = sum_bits(values);
  for (const int ranks : {2, 3, 5}) {
    auto communicators = local_communicators(ranks, {.timeout_s = 60});
    std::vector<uint64_t> found(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const Segment own = segment_of(std::ssize(values), ranks, r);
        SquareSum sum;
        sum.add(std::span(values).subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size())));
        sum.add_others(*communicators[static_cast<size_t>(r)]);
        found[static_cast<size_t>(r)] = std::bit_cast<uint64_t>(sum.value());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const uint64_t bits : found) EXPECT_EQ(bits, expected) << ranks << " ranks";
  }
}

TEST(SquareSum, KeepsWhatIsNotFinite) {
  std::vector<float> values = random_values(1000);
  values[500] = -std::numeric_limits<float>::infinity();
  SquareSum sum;
  sum.add(values);
  EXPECT_EQ(sum.value(), std::numeric_limits<double>::infinity());
  values[10] = std::numeric_limits<float>::quiet_NaN();
  sum.add(values);
  EXPECT_TRUE(std::isnan(sum.value()));
}

}  // namespace
}  // namespace galley
