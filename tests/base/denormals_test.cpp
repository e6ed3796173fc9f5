// Subnormal floats are zero while FlushDenormals lives, in every compute thread and in the calling one, which gets its state back.

#include "libcore/base/denormals.h"

#include <gtest/gtest.h>

#include <vector>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

/// 1e-39, below the smallest normal float, 1.2e-38.
float subnormal() {
  volatile float small = 1e-30f, factor = 1e-9f;
  return small * factor;
}
float four_times_subnormal() {
  volatile float operand = 1e-39f;
  return operand * 4.0f;
}

TEST(FlushDenormals, EveryThreadThatComputes) {
  if (!can_flush_denormals()) GTEST_SKIP() << "this processor has no such mode";
  ASSERT_FALSE(flushes_denormals());
  ASSERT_GT(subnormal(), 0.0f);
  for (const int threads : {1, 2, 3}) {
    const ThreadShare share(threads);
    std::vector<float> results(static_cast<size_t>(threads), -1), operands(results);
    {
      const FlushDenormals flush;
      EXPECT_TRUE(flushes_denormals());
      parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          results[static_cast<size_t>(i)] = subnormal();
          operands[static_cast<size_t>(i)] = four_times_subnormal();
        }
      });
    }
    EXPECT_EQ(results, std::vector<float>(static_cast<size_t>(threads), 0.0f)) << threads << " threads";
    EXPECT_EQ(operands, std::vector<float>(static_cast<size_t>(threads), 0.0f)) << threads << " threads";
    EXPECT_FALSE(flushes_denormals()) << "the calling thread got its state back";
    EXPECT_GT(subnormal(), 0.0f);
  }
}

TEST(FlushDenormals, Nests) {
  if (!can_flush_denormals()) GTEST_SKIP() << "this processor has no such mode";
  const FlushDenormals outer;
  { const FlushDenormals inner; }
  EXPECT_TRUE(flushes_denormals());
}

}  // namespace
}  // namespace galley
