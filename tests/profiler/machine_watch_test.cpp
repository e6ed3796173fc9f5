// CPU time used by other programs, from the kernel's counters.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "libcore/profiler/timer.h"

namespace galley {
namespace {

TEST(CpuSeconds, AddsUpTheProcessorsThatCount) {
  const std::string text =
      "cpu  1000 200 300 4000 50 60 70 80 0 0\n"
      "cpu0 100 20 30 400 5 6 7 8 0 0\n"
      "cpu1 900 180 270 3600 45 54 63 72 0 0\n"
      "cpu12 1 1 1 1 1 1 1 1 0 0\n"
      "intr 12345 0 0\n";
  const CpuSeconds first = cpu_seconds(text, {0}, 100);
  EXPECT_DOUBLE_EQ(first.busy, 1.63);
  EXPECT_DOUBLE_EQ(first.stolen, 0.08);
  EXPECT_DOUBLE_EQ(first.all, 5.76);
  EXPECT_DOUBLE_EQ(cpu_seconds(text, {0, 1}, 100).busy, 16.30);
  EXPECT_DOUBLE_EQ(cpu_seconds(text, {1, 2}, 100).stolen, 0.72);  // cpu12 is not cpu1
  EXPECT_EQ(cpu_seconds(text, {}, 100).all, 0);
  EXPECT_EQ(cpu_seconds("", {0}, 100).all, 0);
}

TEST(MachineWatch, SeesAnotherProgramAndNotItself) {
  // A child that computes: it is another program until it is waited for.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) asm volatile("" ::: "memory");
  }
  const auto began = std::chrono::steady_clock::now();
  const MachineWatch watch;
  double own = 0;
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(600)) own += 1;  // this process computes too
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const MachineState with = watch.state();
  const std::vector<std::string> remarks = watch.remarks(1);
  kill(child, SIGKILL);
  rusage usage{};
  ASSERT_EQ(wait4(child, nullptr, 0, &usage), child);
  const double used_s = static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
  // The kernel counts in ticks of at most 10 ms per processor, and the child ran a little before and after.
  EXPECT_GE(with.others * wall_s, used_s - 0.1);
  if (used_s > 0.2 * wall_s) {
    ASSERT_FALSE(remarks.empty());
    EXPECT_NE(remarks[0].find("other programs used "), std::string::npos) << remarks[0];
  }
  EXPECT_GT(own, 0);
}

TEST(MachineWatch, SaysNothingOfAMomentTooShortToCount) {
  const MachineWatch watch;
  EXPECT_EQ(watch.state().others, 0);
}

}  // namespace
}  // namespace galley
