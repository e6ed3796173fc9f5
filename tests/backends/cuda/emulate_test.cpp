// The emulation of kernels finds the mistakes that it is for: each is planted here once, races in races/races_test.cpp.

#include "tests/backends/cuda/stand_in/emulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"

namespace galley::test {
namespace {

constexpr unsigned kThreads = 256;

/// The sum of x, by a tree in shared memory. `missing`: without a barrier.
float block_sum(const std::vector<float>& x, uint64_t seed, bool missing) {
  float result = 0;
  emulate::launch("block_sum", {1}, {kThreads}, 0, seed, [&] {
    GALLEY_SHARED(float, sums, kThreads);
    sums[threadIdx.x] = threadIdx.x < x.size() ? x[threadIdx.x] : 0;
    for (unsigned half = kThreads / 2; half > 0; half /= 2) {
      if (!missing || half != kThreads / 2) __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) result = sums[0];
  });
  return result;
}

std::string problem_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulation, FindsAMissingBarrier) {
  std::vector<float> x(200);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  int wrong = 0;
  for (const uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_EQ(block_sum(x, seed, false), 19900) << seed;
    wrong += block_sum(x, seed, true) != 19900;  // shared memory that is not written yet is NaN
  }
  EXPECT_GE(wrong, 3);
}

/// y = 2 x by blocks of 64 threads. `missing`: without a bounds check.
void double_all(const std::vector<float>& x, float* y, size_t count, bool missing) {
  emulate::launch("double_all", {static_cast<unsigned>(x.size()) / 64}, {64}, 0, 2, [&] {
    const size_t i = blockIdx.x * size_t{64} + threadIdx.x;
    if (missing || i < count) y[i] = 2 * x[i];
  });
}
/// Writes to a shared array. `missing`: past its end too.
void turn_around(float* y, bool missing) {
  emulate::launch("turn_around", {1}, {64}, 0, 2, [&] {
    GALLEY_SHARED(float, shared, 64);
    shared[63 - threadIdx.x + (missing ? 1 : 0)] = 1;
    __syncthreads();
    y[threadIdx.x] = shared[threadIdx.x];
  });
}

TEST(Emulation, FindsAMissingBoundsCheck) {
  const std::vector<float> x(128, 1);
  constexpr size_t kCount = 100;
  if (GALLEY_ASAN != 0) {
    std::vector<float> y(kCount), turned(64);
    double_all(x, y.data(), kCount, false);
    EXPECT_DEATH(double_all(x, y.data(), kCount, true), "heap-buffer-overflow");
    turn_around(turned.data(), false);
    EXPECT_DEATH(turn_around(turned.data(), true), "use-after-poison");
    return;
  }
  // Without sanitizers, guard words behind an array find it, as those of the operators' cases do.
  for (const bool missing : {false, true}) {
    std::vector<float> y(128, -7);
    double_all(x, y.data(), kCount, missing);
    EXPECT_EQ(std::count(y.begin(), y.begin() + kCount, 2), static_cast<int64_t>(kCount));
    EXPECT_EQ(std::all_of(y.begin() + kCount, y.end(), [](float value) { return value == -7; }), !missing);
  }
}

TEST(Emulation, NamesABarrierInABranch) {
  const std::string problem = problem_of([] {
    emulate::launch("branch", {1}, {64}, 0, 0, [] {
      if (threadIdx.x < 40) __syncthreads();
    });
  });
  EXPECT_NE(problem.find("branch: other threads of the group ended before this barrier"), std::string::npos) << problem;
  EXPECT_NE(problem.find("emulate_test.cpp:"), std::string::npos) << problem;
}

TEST(Emulation, NamesAShuffleInABranch) {
  const std::string problem = problem_of([] {
    emulate::launch("shuffle", {1}, {64}, 0, 2, [] {
      float x = 1;
      if (threadIdx.x % 32 < 7) x += __shfl_xor_sync(0xffffffffu, x, 1);
    });
  });
  EXPECT_NE(problem.find("shuffle: "), std::string::npos) << problem;
}

TEST(Emulation, NamesDifferentBarriers) {
  const std::string problem = problem_of([] {
    emulate::launch("two", {1}, {64}, 0, 0, [] {
      if (threadIdx.x < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
    });
  });
  EXPECT_NE(problem.find("two: threads of one group are at different barriers"), std::string::npos) << problem;
}

TEST(Emulation, RefusesLaunchesBeyondTheLimits) {
  const auto nothing = [] {};
  EXPECT_NE(problem_of([&] { emulate::launch("wide", {1}, {2048}, 0, 0, nothing); }), "");
  EXPECT_NE(problem_of([&] { emulate::launch("high", {1, 70000}, {32}, 0, 0, nothing); }), "");
  EXPECT_NE(problem_of([&] { emulate::launch("none", {0}, {32}, 0, 0, nothing); }), "");
  EXPECT_NE(problem_of([&] { emulate::launch("shared", {1}, {32}, size_t{300} << 10, 0, nothing); }), "");
  EXPECT_EQ(problem_of([&] { emulate::launch("usual", {3, 2}, {32, 2}, 0, 0, nothing); }), "");
}

TEST(Emulation, SharesMemoryInABlockOnly) {
  std::vector<float> first(4, -1);
  emulate::launch("blocks", {4}, {32}, 0, 0, [&] {
    GALLEY_SHARED(float, shared, 32);
    if (threadIdx.x == 0) first[blockIdx.x] = std::isnan(shared[0]) ? 1 : 0;  // the block before has written it
    __syncthreads();
    shared[threadIdx.x] = 5;
  });
  EXPECT_EQ(first, std::vector<float>(4, 1));
}

TEST(Emulation, ShufflesAddUpAWarp) {
  for (const uint64_t seed : {0, 1, 5}) {
    std::vector<float> sums(64);
    emulate::launch("warp", {1}, {64}, 0, seed, [&] {
      auto x = static_cast<float>(threadIdx.x);
      for (unsigned n = 16; n > 0; n /= 2) x += __shfl_xor_sync(0xffffffffu, x, n);
      sums[threadIdx.x] = x;
    });
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(sums[i], i < 32 ? 496 : 1520);
  }
}

TEST(Emulation, AtomicsAddUpAllThreads) {
  unsigned count = 0;
  float sum = 0;
  emulate::launch("atomics", {5}, {96}, 0, 3, [&] {
    atomicAdd(&count, 1u);
    atomicAdd(&sum, 0.5f);
  });
  EXPECT_EQ(count, 480u);
  EXPECT_EQ(sum, 240.0f);
}

}  // namespace
}  // namespace galley::test
