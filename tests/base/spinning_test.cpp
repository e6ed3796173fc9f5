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

/// A period in which two threads worked and together waited for a core for `share` of the wall time.
CoreUse period(double share) { return {.wall_s = kPeriod, .ran_s = (2 - share) * kPeriod, .waited_s = share * kPeriod, .runs = 6}; }

/// Number of periods of waiting `share` until the cores count as shared; `most` if they never do.
int periods_until_shared(SharedCores& cores, double share, int most = 50) {
  for (int i = 1; i <= most; ++i) {
    if (cores.update(period(share))) return i;
  }
  return most;
}

TEST(SharedCores, AreDetectedWithinFourPeriods) {
  for (double share : {0.4, 0.6, 1.0, 2.0}) {
    SharedCores cores;
    EXPECT_LE(periods_until_shared(cores, share), 4) << share;
  }
}

TEST(SharedCores, AreNotThoseOfAQuietMachine) {
  // The figures measured on a quiet machine: most periods without waiting, one in ten with 0.19, single ones with 0.85.
  SharedCores cores;
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(cores.update(period(i % 20 == 0 ? 0.85 : i % 10 == 1 ? 0.19 : 0.01))) << i;
  EXPECT_EQ(periods_until_shared(cores, 0.19), 50);
}

TEST(SharedCores, AreExclusiveAgainAfterTenCalmPeriods) {
  SharedCores cores;
  EXPECT_LE(periods_until_shared(cores, 1.0), 2);
  int periods = 0;
  while (cores.update(period(0))) ASSERT_LT(++periods, 20);
  EXPECT_GE(periods, 9);
  // Waiting in between starts the count again.
  EXPECT_LE(periods_until_shared(cores, 1.0), 2);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(cores.update(period(0))) << i;
  EXPECT_TRUE(cores.update(period(1.5)));
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(cores.update(period(0))) << i;
}

TEST(SharedCores, StaySharedWhileTheProcessDoesNotRun) {
  // At low priority, all threads may be without a core for long. Their waiting is counted when they get one.
  SharedCores cores;
  EXPECT_TRUE(cores.update({.wall_s = kPeriod, .ran_s = 0.001, .waited_s = 0.5, .runs = 2}));
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(cores.update({.wall_s = kPeriod, .ran_s = 0, .waited_s = 0, .runs = 0})) << i;
  EXPECT_TRUE(cores.update({.wall_s = kPeriod, .ran_s = 0.001, .waited_s = 1, .runs = 2}));
}

int64_t sleeps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

/// Runs parallel loops between which one thread works alone for a millisecond. Returns how often a thread went to sleep.
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
  // 5 us of spinning do not bridge a millisecond. With other programs running, a thread may lose its core first, which does not count as
  // sleep.
  EXPECT_GE(count, kLoops / 2);
  RecordProperty("sleeps_with_short_spinning", static_cast<int>(count));
  RecordProperty("sleeps_otherwise", static_cast<int>(sleeps_of_loops(kLoops)));
}

TEST(ShortSpinning, WorksRepeatedlyAndBesideOtherPools) {
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
