#include "libcore/base/parallel.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "libcore/base/error.h"

namespace galley {
namespace {

class ParallelTasks : public testing::Test {
 protected:
  void SetUp() override { set_compute_threads(4); }
  void TearDown() override { set_compute_threads(saved_); }
  int saved_ = compute_threads();
};

TEST_F(ParallelTasks, RunsEachOnceOnASlotThatExists) {
  for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
    for (const int64_t threads : {1, 2, 3, 4, 9}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::atomic<bool> inside{true};
      parallel_tasks(count, threads, [&](int64_t task, int64_t slot) {
        ++runs[static_cast<size_t>(task)];
        if (slot < 0 || slot >= threads) inside = false;
      });
      EXPECT_TRUE(inside);
      for (const auto& each : runs) EXPECT_EQ(each, 1) << count << " tasks, " << threads << " threads";
    }
  }
}

// A slot takes its own tasks in order; other slots take the remaining tasks of a busy slot from the end.
TEST_F(ParallelTasks, SlotsKeepTheirStretchAndHelpOthers) {
  constexpr int64_t kCount = 40, kThreads = 2;
  std::vector<int64_t> slot_of(kCount, -1);
  std::vector<int64_t> order[kThreads];
  std::atomic<bool> begun{false};  // the first slot has begun
  std::atomic<int64_t> taken{0};   // tasks taken by the second slot
  parallel_tasks(kCount, kThreads, [&](int64_t task, int64_t slot) {
    slot_of[static_cast<size_t>(task)] = slot;
    const auto wait = [](const auto& until) {
      for (int i = 0; i < 10000 && !until(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    order[slot].push_back(task);
    if (slot == 0) begun = true;
    if (slot == 1) {
      wait([&] { return begun.load(); });
      ++taken;
    }
    // The first slot stays at its first task until the other has taken nearly all others.
    if (task == 0) wait([&] { return taken >= 30; });
  });
  EXPECT_EQ(slot_of[0], 0);
  ASSERT_GE(order[1].size(), 30U);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(order[1][i], 20 + static_cast<int64_t>(i));
  EXPECT_EQ(order[1][20], 19);
  EXPECT_EQ(order[1][21], 18);
}

TEST_F(ParallelTasks, RangesCoverEachItemOnce) {
  for (const int64_t count : {0, 1, 5, 64, 1000, 1003}) {
    for (const int64_t grain : {1, 7, 64}) {
      for (const bool backwards : {false, true}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
        std::atomic<bool> cut_well{true};
        parallel_ranges(
            count, grain,
            [&](int64_t begin, int64_t end) {
              if (begin % grain != 0 || (end % grain != 0 && end != count) || begin >= end) cut_well = false;
              for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
            },
            backwards);
        EXPECT_TRUE(cut_well);
        for (const auto& each : runs) EXPECT_EQ(each, 1) << count << " items by " << grain;
      }
    }
  }
}

// A backward pass reads what the previous pass left in a core's cache: the same thread, from the end.
TEST_F(ParallelTasks, RangesGoBackwards) {
  set_compute_threads(1);
  std::vector<int64_t> order;
  parallel_ranges(10, 3, [&](int64_t begin, int64_t) { order.push_back(begin); }, true);
  EXPECT_EQ(order, (std::vector<int64_t>{9, 6, 3, 0}));

  set_compute_threads(2);
  std::array<std::vector<int64_t>, 2> of_half;
  std::atomic<int> begun{0};
  parallel_ranges(
      12, 1,
      [&](int64_t begin, int64_t) {
        // Both threads begin before either continues, so that the first range of each is in its own half.
        if (++begun <= 2) {
          for (int i = 0; i < 10000 && begun < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          of_half[begin < 6 ? 0 : 1].push_back(begin);
        }
      },
      true);
  EXPECT_EQ(of_half[0], std::vector<int64_t>{5});
  EXPECT_EQ(of_half[1], std::vector<int64_t>{11});
}

TEST_F(ParallelTasks, PassesErrorsOn) {
  EXPECT_THROW(parallel_tasks(10, 2,
                              [](int64_t task, int64_t) {
                                if (task == 7) fail(ErrorCode::kInternal, "task");
                              }),
               Error);
}

}  // namespace
}  // namespace galley
