// Times of nodes on an asynchronous device: they are the device's times, and the host does not wait for any node to record them.

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "libcore/backends/backend.h"
#include "libcore/device/sim_device.h"
#include "libcore/profiler/profile.h"
#include "tests/profiler/recorded.h"

namespace galley {
namespace {

using test::RecordedRun;

void prepare_on_sim(RecordedRun& run) { test::prepare_training(run, 3, {.backend = open_backend("sim")}); }

/// Keeps the device's stream busy until it is released, for a limited time, so that a test that never releases it fails instead of hanging.
class Blocked {
 public:
  Blocked() {
    sim_enqueue(sim_device().stream(), [until = released_.get_future().share()] { until.wait_for(std::chrono::seconds(10)); });
  }
  ~Blocked() { release(); }
  /// When it was released, in ns of the steady clock.
  int64_t release() {
    const int64_t now = steady_ns();
    if (!std::exchange(done_, true)) released_.set_value();
    return now;
  }

 private:
  std::promise<void> released_;
  bool done_ = false;
};

TEST(DeviceTimes, AreThoseOfTheDeviceNotOfTheHost) {
  RecordedRun run;
  prepare_on_sim(run);
  run.step(1);
  run.recorder.clear();
  Blocked blocked;
  run.recorder.begin_step(2);
  run.execution->run({.observer = &run.recorder});
  const int64_t released = blocked.release();
  run.recorder.end_step();

  const Recording& recording = run.recorder.recording();
  ASSERT_EQ(recording.nodes.size(), run.program->steps().size() - run.program->prepare_steps());
  int64_t last = released;
  for (const NodeEvent& node : recording.nodes) {
    EXPECT_GE(node.begin_ns, last) << "node " << node.step
                                   << ": the host enqueued it before the device was free; nodes of a stream do not overlap";
    EXPECT_GE(node.end_ns, node.begin_ns);
    last = node.end_ns;
  }
  EXPECT_GE(recording.steps.back().end_ns, last) << "the step has run when it ends";
}

TEST(DeviceTimes, MakeAProfile) {
  RecordedRun run;
  prepare_on_sim(run);
  for (int64_t k = 1; k <= 3; ++k) run.step(k);
  const Profile profile = make_profile(run.recorder.recording(), {});
  double compute = 0;
  for (const NodeEvent& node : run.recorder.recording().nodes) compute += 1e-9 * static_cast<double>(node.end_ns - node.begin_ns);
  EXPECT_NEAR(profile.compute_s, compute, 1e-9);
  EXPECT_NEAR(profile.data_s + profile.compute_s + profile.gap_s, profile.wall_s, 1e-9);
  EXPECT_GE(profile.gap_s, 0);
}

// The node timer reads its events after each run; a run has finished when it is timed, and one timer may observe several runs.
TEST(DeviceTimes, ATimerCountsEveryRun) {
  RecordedRun run;
  prepare_on_sim(run);
  run.execution->run();  // prepares
  NodeTimer timer;
  for (int i = 0; i < 3; ++i) run.execution->run({.observer = &timer});
  ASSERT_EQ(timer.rows().size(), run.program->steps().size() - run.program->prepare_steps());
  for (const NodeTimer::Row& row : timer.rows()) {
    EXPECT_EQ(row.calls, 3) << row.op;
    EXPECT_GT(row.seconds, 0) << row.op;
  }
}

// Marks are reused: a longer run creates more, a shorter one creates none.
TEST(NodeMarks, AreUsedAgain) {
  NodeMarks marks;
  Stream& stream = sim_device().stream();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) marks.begin(stream), marks.end(stream);
    ASSERT_EQ(marks.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(marks.times(i).first, marks.times(i).second);
    if (round == 1) break;
    const int64_t first_round = marks.times(2).second;
    marks.clear();
    EXPECT_EQ(marks.size(), 0u);
    marks.begin(stream), marks.end(stream);
    EXPECT_GE(marks.times(0).first, first_round) << "the new record replaced the old";
    marks.clear();
  }
  marks.begin(stream), marks.end(stream);
  EXPECT_THROW(marks.begin(host_stream()), InternalError) << "marks of one run belong to one device";
}

}  // namespace
}  // namespace galley
