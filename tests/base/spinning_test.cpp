#include "libcore/base/spinning.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

namespace galley {
namespace {

constexpr double kPeriod = 0.02;

/// Two threads that were given a core `runs` times, and waited for it so long in all.
CoreUse period(double waited_s, int64_t runs) {
  return {.wall_s = kPeriod, .ran_s = 2 * kPeriod - waited_s, .waited_s = waited_s, .runs = runs};
}

TEST(SharedCores, AreSeenAtOnceAndForgottenAfterCalm) {
  SharedCores cores;
  EXPECT_FALSE(cores.update(period(0, 1)));
  EXPECT_FALSE(cores.update(period(0.0005, 2)));  // a system's own service
  EXPECT_TRUE(cores.update(period(0.01, 6)));     // half of the time without a core
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(cores.update(period(0, 1))) << i;
  EXPECT_TRUE(cores.update(period(0.01, 6)));  // not calm yet: counted anew
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(cores.update(period(0, 1))) << i;
  EXPECT_FALSE(cores.update(period(0, 1)));
}

TEST(SharedCores, AreNotWakeUpsOfAQuietMachine) {
  // A virtual machine whose threads sleep at every barrier: 2000 wake-ups a second of 60 us.
  SharedCores cores;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(cores.update(period(40 * 60e-6, 40))) << i;
  // The same threads beside a busy process.
  EXPECT_TRUE(cores.update(period(40 * 60e-6 + 0.004, 44)));
}

TEST(SharedCores, AreNotForgottenWhileNothingRuns) {
  // At low priority all threads may be without a core for long; what they waited is counted when they are given one.
  SharedCores cores;
  EXPECT_TRUE(cores.update(period(0.01, 6)));
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(cores.update({.wall_s = kPeriod, .ran_s = 0, .waited_s = 0, .runs = 0})) << i;
  EXPECT_TRUE(cores.update({.wall_s = kPeriod, .ran_s = 0.001, .waited_s = 1, .runs = 2}));
}

int64_t sleeps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

/// Loops between which one thread works alone for a millisecond: how often the other went to sleep.
int64_t sleeps_of_loops(int loops) {
  const int64_t before = sleeps();
  for (int i = 0; i < loops; ++i) {
#pragma omp parallel num_threads(2)
    {
      asm volatile("" ::: "memory");
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
  return sleeps() - before;
}

TEST(ShortSpinning, WaitingThreadsSleep) {
  if (dlsym(RTLD_DEFAULT, "kmp_set_blocktime") != nullptr) GTEST_SKIP() << "the OpenMP library is not libgomp";
  sleeps_of_loops(1);  // makes the pool
  constexpr int kLoops = 200;
  int64_t count = 0;
  {
    const ShortSpinning spinning;
    count = sleeps_of_loops(kLoops);
  }
  // Some 5 us of spinning do not bridge a millisecond. Beside other programs the thread may lose its core meanwhile, which is not sleep.
  EXPECT_GE(count, kLoops / 2);
  RecordProperty("sleeps_with_short_spinning", static_cast<int>(count));
  RecordProperty("sleeps_otherwise", static_cast<int>(sleeps_of_loops(kLoops)));
}

TEST(ShortSpinning, CanBeAskedForAgainAndByAProcessWithOtherPools) {
  for (int i = 0; i < 20; ++i) {
    const ShortSpinning spinning;
    int threads = 0;
#pragma omp parallel num_threads(3) reduction(+ : threads)
    ++threads;
    EXPECT_EQ(threads, 3);
  }
}

}  // namespace
}  // namespace galley
