// The heartbeat names the rank at fault: silent, behind, or neither.

#include "libcore/comm/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/comm/ranks.h"

namespace galley {
namespace {

/// A rank that waits polls: its thread is in the collective.
Beat beat_in(int64_t step, uint64_t started, uint64_t waiting, const char* text) {
  static uint64_t polls = 0;
  Beat beat{.step = step,
            .started = started,
            .waiting = waiting,
            .finished = waiting > 0 ? started - 1 : started,
            .polls = waiting > 0 ? ++polls : 0};
  std::strncpy(beat.text.data(), text, beat.text.size() - 1);
  return beat;
}

TEST(RankWatch, NamesARankThatIsSilent) {
  RankWatch watch(3, 5, 0);
  for (int r = 0; r < 3; ++r) watch.heard(r, beat_in(20, 21, 0, "all_reduce grads.bucket3"), 1);
  EXPECT_EQ(watch.fault(5.9), "");
  watch.heard(0, beat_in(20, 21, 0, "all_reduce grads.bucket3"), 6);
  watch.heard(2, beat_in(20, 21, 0, "all_reduce grads.bucket3"), 6);
  EXPECT_EQ(watch.fault(6.2), "rank 1 does not answer for 5.2 s; it was in step 20, collective 21 (all_reduce grads.bucket3)");
}

TEST(RankWatch, BlamesNoOtherRankWhileOneIsSilent) {
  // Rank 1 is stopped in collective 21, which all have started. Rank 0 seems to stand: its thread waits for a core.
  RankWatch watch(3, 5, 0);
  for (int r = 0; r < 3; ++r) watch.heard(r, beat_in(20, 21, r == 0 ? 0 : 21, "all_reduce grads.bucket3"), 1);
  watch.heard(1, beat_in(20, 21, 21, "all_reduce grads.bucket3"), 4);
  std::string fault;
  for (double t = 4.5; t < 9.2; t += 0.5) {
    watch.heard(0, beat_in(20, 21, 0, "all_reduce grads.bucket3"), t);
    watch.heard(2, beat_in(20, 21, 21, "all_reduce grads.bucket3"), t);
    fault = watch.fault(t);
    EXPECT_EQ(fault, "") << t;
  }
  watch.heard(0, beat_in(20, 21, 0, "all_reduce grads.bucket3"), 9.3);
  EXPECT_EQ(watch.fault(9.3), "rank 1 does not answer for 5.3 s; it was in step 20, collective 21 (all_reduce grads.bucket3)");
}

TEST(RankWatch, NamesTheRankThatWasSilentForLongest) {
  RankWatch watch(3, 5, 0);
  watch.heard(0, beat_in(20, 21, 21, "x"), 2);
  watch.heard(1, beat_in(20, 21, 21, "x"), 1);
  watch.heard(2, beat_in(20, 21, 21, "x"), 3);
  EXPECT_EQ(watch.fault(9).substr(0, 6), "rank 1");
}

TEST(RankWatch, TimeInWhichTheWatchingRankWasStoppedDoesNotCount) {
  RankWatch watch(2, 5, 0);
  watch.ignore(1);
  watch.heard(0, beat_in(20, 21, 21, "x"), 1);
  watch.skip(60);
  EXPECT_EQ(watch.silent(62), "");
  EXPECT_EQ(watch.silent(66.5), "rank 0 does not answer for 5.5 s; it was in step 20, collective 21 (x)");
}

TEST(RankWatch, NamesTheRankThatTheOthersWaitFor) {
  RankWatch watch(3, 5, 0);
  for (int i = 1; i <= 7; ++i) {
    watch.heard(0, beat_in(20, 21, 21, "all_reduce grads.bucket3"), i);
    watch.heard(1, beat_in(20, 20, 0, "all_reduce grads.bucket2"), i);  // loops, or is stuck in a lock
    watch.heard(2, beat_in(20, 21, 21, "all_reduce grads.bucket3"), i);
    if (i <= 5) {
      EXPECT_EQ(watch.fault(i), "") << i;
    }
  }
  EXPECT_EQ(watch.fault(7),
            "rank 1 is alive but has not reached collective 21 (all_reduce grads.bucket3) for 6.0 s; it is in step 20, collective 20 "
            "(all_reduce grads.bucket2)");
}

TEST(RankWatch, NamesARankThatStandsInACollectiveWhichOthersWaitFor) {
  // All have started collective 21, whose sums need the work of each. Rank 2 computes, or loops, outside of a wait.
  const auto fault_of = [](const Beat& odd) {
    RankWatch watch(3, 5, 0);
    std::string fault;
    for (int t = 1; t <= 8; ++t) {
      for (int r = 0; r < 2; ++r) {
        Beat waits = beat_in(20, 22, 21, "all_reduce grads.bucket4");
        waits.polls = static_cast<uint64_t>(t);
        watch.heard(r, waits, t);
      }
      watch.heard(2, odd, t);
      if (t <= 6) {
        EXPECT_EQ(watch.fault(t), "") << t;
      }
      fault = watch.fault(t);
    }
    return fault;
  };
  const Beat computes = beat_in(20, 22, 0, "all_reduce grads.bucket4");
  const std::string expected =
      "rank 2 is alive but has not moved for 7.0 s, while others wait for collective 21; it is in step 20, collective 22 "
      "(all_reduce grads.bucket4)";
  EXPECT_EQ(fault_of(computes), expected);
  // In a wait, but its thread is not there.
  Beat lost = beat_in(20, 22, 21, "all_reduce grads.bucket4");
  lost.polls = 7;
  EXPECT_EQ(fault_of(lost), expected);
}

TEST(RankWatch, ALongTaskHasTenMinutes) {
  RankWatch watch(2, 5, 0);
  Beat patient = beat_in(3, 3, 0, "x");
  patient.patient = 1;
  std::string fault;
  for (int t = 1; t <= 610; ++t) {
    watch.heard(0, beat_in(3, 4, 4, "x"), t);
    watch.heard(1, patient, t);
    fault = watch.fault(t);
    if (t <= 600) {
      ASSERT_EQ(fault, "") << t;
    }
  }
  EXPECT_NE(fault.find("rank 1 is alive but has not reached collective 4"), std::string::npos) << fault;
  for (int t = 1; t <= 3000; t += 10) {  // it gets on
    ++patient.polls;
    watch.heard(0, beat_in(3, 4, 4, "x"), 700 + t);
    watch.heard(1, patient, 700 + t);
    ASSERT_EQ(watch.fault(700 + t), "") << t;
  }
}

TEST(RankWatch, LongStepsAndLongTasksAreNoFault) {
  RankWatch watch(2, 5, 0);
  // Steps of 10 s: the limit is 50 s.
  for (int step = 1; step <= 3; ++step) {
    for (int r = 0; r < 2; ++r) watch.heard(r, beat_in(step, static_cast<uint64_t>(step), 0, "x"), step * 10);
  }
  for (int t = 31; t <= 75; ++t) {
    watch.heard(0, beat_in(3, 4, 4, "x"), t);
    watch.heard(1, beat_in(3, 3, 0, "x"), t);
    EXPECT_EQ(watch.fault(t), "") << t;
  }
  watch.heard(0, beat_in(3, 4, 4, "x"), 90);
  watch.heard(1, beat_in(3, 3, 0, "x"), 90);
  EXPECT_NE(watch.fault(90), "");
  // The rank writes a checkpoint.
  Beat patient = beat_in(3, 3, 0, "x");
  patient.patient = 1;
  watch.heard(1, patient, 91);
  EXPECT_EQ(watch.fault(91), "");
}

TEST(RankWatch, NothingIsWrongBeforeTheFirstStepAndAfterTheEnd) {
  RankWatch watch(2, 5, 0);
  for (int t = 1; t < 60; ++t) {
    watch.heard(0, beat_in(0, 2, 2, "broadcast x"), t);
    watch.heard(1, beat_in(0, 1, 0, ""), t);  // still compiles
    EXPECT_EQ(watch.fault(t), "");
  }
  Beat last;
  last.last = 1;
  watch.heard(0, last, 60);
  watch.heard(1, last, 60);
  EXPECT_EQ(watch.fault(1000), "");
  EXPECT_TRUE(watch.ended());
}

TEST(RankWatch, NamesARankThatDoesNotEnd) {
  RankWatch watch(2, 5, 0);
  std::string fault;
  for (int t = 1; t <= 620; ++t) {
    Beat last = beat_in(20, 21, 0, "x");
    last.last = 1;
    watch.heard(0, beat_in(20, 21, 0, "all_reduce digest"), t);  // measures, prints, or loops
    watch.heard(1, last, t);
    fault = watch.fault(t);
    if (t <= 600) {
      ASSERT_EQ(fault, "") << t;
    }
  }
  EXPECT_EQ(fault,
            "rank 0 is alive but does not end, 619.0 s after its last collective; it is in step 20, collective 21 (all_reduce digest)");
}

TEST(RankWatch, NamesARankThatHasEndedWithoutACollective) {
  for (const int64_t step : {0, 20}) {
    RankWatch watch(3, 5, 0);
    std::string fault;
    for (int t = 1; t <= 7; ++t) {
      Beat waits = beat_in(step, 22, 22, "broadcast build"), last = beat_in(step, 21, 0, "all_reduce digest");
      waits.patient = 1;
      last.last = 1;
      watch.heard(0, waits, t);
      watch.heard(1, last, t);
      watch.heard(2, beat_in(step, 22, 22, "broadcast build"), t);
      fault = watch.fault(t);
      if (t <= 6) {
        ASSERT_EQ(fault, "") << t;
      }
    }
    const std::string where = step == 0 ? "before step 1" : "in step 20";
    EXPECT_EQ(fault, cat("rank 1 has ended, ", where, ", collective 21 (all_reduce digest), while rank 0 waits ", where,
                         ", collective 22 (broadcast build) for it"));
  }
}

/// Heartbeats of threads; a rank whose messages are held back is like a stopped process.
TEST(Heartbeat, FindsALoopAndEndsWithoutAFault) {
  const auto post = std::make_shared<TestMessages::Post>();
  std::vector<Position> positions(3);
  for (Position& position : positions) {
    position.step = 7;
    position.started = 12;
    position.waiting = 12;
    position.set_text("all_reduce", "grads.bucket3");
  }
  positions[2].started = 11;
  positions[2].waiting = 0;
  positions[2].set_text("all_reduce", "grads.bucket2");
  std::vector<std::string> faults(3);
  std::atomic<bool> found = false;
  {
    std::vector<std::unique_ptr<Heartbeat>> beats;
    for (int r = 0; r < 3; ++r) {
      beats.push_back(std::make_unique<Heartbeat>(
          std::make_unique<TestMessages>(post, r, 3), positions[static_cast<size_t>(r)],
          [&faults, &found, r](const std::string& fault) {
            faults[static_cast<size_t>(r)] = fault;
            found = true;
          },
          HeartbeatOptions{.limit_s = 0.5, .interval_ms = 20}));
    }
    for (int i = 0; i < 2000 && !found; ++i) {
      ++positions[0].polls;
      ++positions[1].polls;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // All ranks end: destructors wait for each other, so each needs a thread.
    std::vector<std::thread> ends;
    for (auto& beat : beats) ends.emplace_back([&beat] { beat.reset(); });
    for (std::thread& end : ends) end.join();
  }
  EXPECT_NE(faults[0].find("rank 2 is alive but has not reached collective 12 (all_reduce grads.bucket3)"), std::string::npos) << faults[0];
  EXPECT_EQ(faults[1], "");
  EXPECT_EQ(faults[2], "");
}

/// Messages of a rank whose process is stopped after some of its calls, for a time.
class StoppedMessages : public TestMessages {
 public:
  StoppedMessages(std::shared_ptr<Post> post, int rank, int size) : TestMessages(std::move(post), rank, size) {}
  bool test(int number) override {
    if (++calls_ == 10) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    return TestMessages::test(number);
  }

 private:
  int calls_ = 0;
};

TEST(Heartbeat, ARankThatWasStoppedBlamesNobody) {
  const auto post = std::make_shared<TestMessages::Post>();
  std::vector<Position> positions(2);
  for (Position& position : positions) {
    position.step = 7;
    position.started = position.waiting = 12;
  }
  std::vector<std::string> faults(2);
  std::atomic<bool> found = false;
  std::vector<std::unique_ptr<Heartbeat>> beats;
  for (int r = 0; r < 2; ++r) {
    auto messages = r == 1 ? std::make_unique<StoppedMessages>(post, r, 2) : std::make_unique<TestMessages>(post, r, 2);
    beats.push_back(std::make_unique<Heartbeat>(
        std::move(messages), positions[static_cast<size_t>(r)],
        [&faults, &found, r](const std::string& fault) {
          faults[static_cast<size_t>(r)] = fault;
          found = true;
        },
        HeartbeatOptions{.limit_s = 0.5, .interval_ms = 20}));
  }
  for (int i = 0; i < 2000 && !found; ++i) {  // rank 0 waits for rank 1; the thread of neither is seen
    ++positions[0].polls;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));  // rank 1 goes on
  std::vector<std::thread> ends;
  for (auto& beat : beats) ends.emplace_back([&beat] { beat.reset(); });
  for (std::thread& end : ends) end.join();
  EXPECT_EQ(faults[0].find("rank 1 does not answer for"), 0u) << faults[0];
  EXPECT_EQ(faults[1], "");
}

}  // namespace
}  // namespace galley
