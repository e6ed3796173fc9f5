// Laws: generated lists run every pass once and never deadlock, also with channels of one message; the checker finds planted faults; an
// executor that follows the lists computes the gradients of all micro-batches, in as many slots as the formula says; idle time of equal
// stages equals the formula.

#include "libcore/dist/pipeline_actions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "libcore/base/error.h"
#include "libcore/dist/formulas.h"

namespace galley {
namespace {

using Kind = PipelineActionKind;

struct Shape {
  PipelineSchedule schedule;
  int64_t stages, micro_batches, chunks;
  std::string text() const {
    return cat(name_of(schedule), ", ", stages, " stages, ", micro_batches, " micro-batches, ", chunks, " chunks");
  }
};

/// All schedules of up to so many stages and micro-batches.
std::vector<Shape> all_shapes(int64_t stages, int64_t micro_batches) {
  std::vector<Shape> shapes;
  for (int64_t p = 1; p <= stages; ++p) {
    for (int64_t m = 1; m <= micro_batches; ++m) {
      shapes.push_back({PipelineSchedule::kGpipe, p, m, 1});
      shapes.push_back({PipelineSchedule::kOneForwardOneBackward, p, m, 1});
      for (int64_t c = 2; c <= 4 && p > 1 && m % p == 0; ++c) shapes.push_back({PipelineSchedule::kInterleaved, p, m, c});
    }
  }
  return shapes;
}

std::vector<StageActions> actions_of(const Shape& shape) {
  return pipeline_actions(pipeline_schedule(shape.schedule, shape.stages, shape.micro_batches, shape.chunks), shape.chunks);
}

TEST(PipelineActions, NoListDeadlocks) {
  for (const Shape& shape : all_shapes(8, 16)) {
    const std::vector<StageActions> stages = actions_of(shape);
    EXPECT_EQ(check_actions(stages, shape.micro_batches, shape.chunks, 1), "") << shape.text();
  }
  EXPECT_THROW(pipeline_schedule(PipelineSchedule::kInterleaved, 4, 6, 2), Error);
}

TEST(PipelineActions, SendsThatWaitForTheirReceiverDeadlock) {  // the negative control of the test above
  const Shape shape{PipelineSchedule::kOneForwardOneBackward, 2, 4, 1};
  EXPECT_EQ(check_actions(actions_of(shape), 4, 1, 0).rfind("deadlock: stage 0 waits in send activation of micro-batch 0", 0), 0u)
      << check_actions(actions_of(shape), 4, 1, 0);
}

TEST(PipelineActions, FaultsAreFound) {
  const Shape shape{PipelineSchedule::kOneForwardOneBackward, 3, 4, 1};
  const auto fault = [&](const std::function<void(std::vector<StageActions>&)>& plant) {
    std::vector<StageActions> stages = actions_of(shape);
    plant(stages);
    return check_actions(stages, 4, 1, 1);
  };
  const auto at = [](std::vector<PipelineAction>& actions, Kind kind, int64_t micro_batch) {
    return std::find_if(actions.begin(), actions.end(),
                        [&](const PipelineAction& action) { return action.kind == kind && action.micro_batch == micro_batch; });
  };
  const auto says = [](const std::string& text, const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  says(fault([&](auto& s) { s[1].actions.erase(at(s[1].actions, Kind::kBackward, 2)); }), "stage 1");
  says(fault([&](auto& s) { s[1].actions.push_back(*at(s[1].actions, Kind::kForward, 2)); }), "after the update");
  says(fault([&](auto& s) { s[0].actions.insert(s[0].actions.begin(), *at(s[0].actions, Kind::kForward, 0)); }), "stands twice");
  says(fault([&](auto& s) { std::iter_swap(at(s[2].actions, Kind::kForward, 0), at(s[2].actions, Kind::kBackward, 0)); }),
       "does not follow its forward pass");
  says(fault([&](auto& s) { at(s[0].actions, Kind::kForward, 1)->slot = 0; }), "overwrites a slot");
  says(fault([&](auto& s) { s[0].actions.erase(at(s[0].actions, Kind::kSendActivation, 3)); }), "deadlock");
  says(fault([&](auto& s) { s[1].actions.erase(at(s[1].actions, Kind::kReceiveActivation, 3)); }), "does not receive");
  says(fault([&](auto& s) { std::iter_swap(at(s[0].actions, Kind::kSendActivation, 0), at(s[0].actions, Kind::kSendActivation, 1)); }),
       "deadlock");
  says(fault([&](auto& s) { std::erase_if(s[0].actions, [](const auto& a) { return a.kind == Kind::kReduceGradients; }); }), "not reduced");
  says(fault([&](auto& s) { s[2].actions.pop_back(); }), "the update is missing");
}

/// Part k multiplies by 1, 2 or 3; the loss of micro-batch b is half the square of the last output. Small integers: sums are exact.
class Multiplier {
 public:
  Multiplier(const Shape& shape, const std::vector<StageActions>& stages) : shape_(shape), gradients(parts()) {
    for (const StageActions& stage : stages) slots_.emplace_back(static_cast<size_t>(stage.slots), 0.0);
    in_.assign(stages.size(), 0);
    out_.assign(stages.size(), 0);
  }
  size_t parts() const { return static_cast<size_t>(shape_.stages * shape_.chunks); }
  static double weight(size_t part) { return static_cast<double>(part % 3) + 1; }

  /// Values that messages carry: the action reads or sets `value`.
  void perform(int64_t stage, const PipelineAction& action, double& value) {
    const auto s = static_cast<size_t>(stage);
    const auto part = static_cast<size_t>(action.chunk * shape_.stages + stage);
    switch (action.kind) {
      case Kind::kReceiveActivation:
      case Kind::kReceiveGradient: in_[s] = value; break;
      case Kind::kSendActivation:
      case Kind::kSendGradient: value = out_[s]; break;
      case Kind::kForward: {
        double& slot = slots_[s][static_cast<size_t>(action.slot)];
        slot = part == 0 ? static_cast<double>(action.micro_batch + 1) : shape_.stages == 1 ? out_[s] : in_[s];
        out_[s] = slot * weight(part);
        break;
      }
      case Kind::kBackward: {
        const double x = slots_[s][static_cast<size_t>(action.slot)];
        const double gradient = part + 1 == parts() ? x * weight(part) : shape_.stages == 1 ? out_[s] : in_[s];
        gradients[part] += gradient * x;
        out_[s] = gradient * weight(part);
        break;
      }
      default: break;
    }
  }

  std::vector<double> expected() const {
    std::vector<double> result(parts(), 0);
    double product = 1;
    for (size_t part = 0; part < parts(); ++part) product *= weight(part);
    for (int64_t b = 1; b <= shape_.micro_batches; ++b) {
      // d(out^2 / 2) / d w_k = out^2 / w_k
      for (size_t part = 0; part < parts(); ++part)
        result[part] += product * static_cast<double>(b) * product * static_cast<double>(b) / weight(part);
    }
    return result;
  }

 private:
  Shape shape_;
  std::vector<std::vector<double>> slots_;
  std::vector<double> in_, out_;

 public:
  std::vector<double> gradients;
};

using Channel = std::tuple<int64_t, int64_t, bool>;
Channel channel_of(int64_t stage, const PipelineAction& action) {
  const bool receive = action.kind == Kind::kReceiveActivation || action.kind == Kind::kReceiveGradient;
  const bool gradient = action.kind == Kind::kReceiveGradient || action.kind == Kind::kSendGradient;
  return receive ? Channel{action.peer, stage, gradient} : Channel{stage, action.peer, gradient};
}

TEST(PipelineActions, AnExecutorComputesAllGradients) {
  for (const Shape& shape : all_shapes(4, 8)) {
    if (shape.stages == 1 && shape.chunks > 1) continue;
    const std::vector<StageActions> stages = actions_of(shape);
    Multiplier model(shape, stages);
    std::map<Channel, std::deque<double>> channels;
    const std::string stopped = run_actions(stages, 1, [&](int64_t stage, const PipelineAction& action) {
      double value = 0;
      if (action.peer < 0) return model.perform(stage, action, value);
      std::deque<double>& queue = channels[channel_of(stage, action)];
      const bool receive = action.kind == Kind::kReceiveActivation || action.kind == Kind::kReceiveGradient;
      if (receive) {
        value = queue.front();
        queue.pop_front();
      }
      model.perform(stage, action, value);
      if (!receive) queue.push_back(value);
    });
    EXPECT_EQ(stopped, "") << shape.text();
    EXPECT_EQ(model.gradients, model.expected()) << shape.text();
  }
}

/// A channel of one value between threads.
class Mailbox {
 public:
  void put(double value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !full_; });
    value_ = value;
    full_ = true;
    changed_.notify_all();
  }
  double take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return full_; });
    full_ = false;
    changed_.notify_all();
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool full_ = false;
  double value_ = 0;
};

TEST(PipelineActions, RanksAsThreadsComputeAllGradients) {
  for (const Shape& shape : {Shape{PipelineSchedule::kGpipe, 4, 8, 1}, Shape{PipelineSchedule::kOneForwardOneBackward, 4, 8, 1},
                             Shape{PipelineSchedule::kInterleaved, 3, 6, 2}, Shape{PipelineSchedule::kInterleaved, 2, 6, 3}}) {
    const std::vector<StageActions> stages = actions_of(shape);
    Multiplier model(shape, stages);
    std::map<Channel, Mailbox> channels;
    for (int64_t s = 0; s < shape.stages; ++s) {
      for (const PipelineAction& action : stages[static_cast<size_t>(s)].actions) {
        if (action.peer >= 0) channels[channel_of(s, action)];
      }
    }
    std::vector<std::thread> ranks;
    for (int64_t s = 0; s < shape.stages; ++s) {
      ranks.emplace_back([&, s] {
        for (const PipelineAction& action : stages[static_cast<size_t>(s)].actions) {
          double value = 0;
          const bool receive = action.kind == Kind::kReceiveActivation || action.kind == Kind::kReceiveGradient;
          if (receive) value = channels.at(channel_of(s, action)).take();
          model.perform(s, action, value);
          if (action.peer >= 0 && !receive) channels.at(channel_of(s, action)).put(value);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(model.gradients, model.expected()) << shape.text();
  }
}

TEST(PipelineActions, SlotsEqualTheFormula) {
  for (const Shape& shape : all_shapes(8, 16)) {
    if (shape.chunks > 2) continue;
    const std::vector<StageActions> stages = actions_of(shape);
    for (size_t s = 0; s < stages.size(); ++s)
      EXPECT_DOUBLE_EQ(static_cast<double>(stages[s].slots) / static_cast<double>(shape.chunks),
                       held_micro_batches(shape.schedule, static_cast<int64_t>(s), shape.stages, shape.micro_batches, shape.chunks))
          << shape.text() << ", stage " << s;
  }
}

TEST(PipelineActions, IdleTimeEqualsTheFormula) {
  for (const int64_t p : {2, 4, 8}) {
    for (const int64_t m : {8, 16}) {
      for (const Shape& shape : {Shape{PipelineSchedule::kGpipe, p, m, 1}, Shape{PipelineSchedule::kOneForwardOneBackward, p, m, 1},
                                 Shape{PipelineSchedule::kInterleaved, p, m, 2}}) {
        const auto parts = static_cast<size_t>(p * shape.chunks);
        StageTimes times;
        times.forward.assign(parts, 1.0 / static_cast<double>(shape.chunks));
        times.backward.assign(parts, 2.0 / static_cast<double>(shape.chunks));
        double end = 0;
        for (const TimedStage& stage : time_actions(actions_of(shape), times)) {
          end = std::max(end, stage.passes.back().end);
          EXPECT_EQ(stage.reduce.size(), static_cast<size_t>(shape.chunks));
          EXPECT_DOUBLE_EQ(*std::max_element(stage.reduce.begin(), stage.reduce.end()), stage.passes.back().end);
        }
        const double busy = 3.0 * static_cast<double>(m);
        EXPECT_NEAR((end - busy) / end, pipeline_bubble(p, m, shape.chunks), 1e-9) << shape.text();
        EXPECT_NEAR((end - busy) / busy, static_cast<double>(p - 1) / static_cast<double>(m * shape.chunks), 1e-9)
            << "(p-1)/m of the ideal time: " << shape.text();
      }
    }
  }
}

TEST(PipelineActions, MessagesTakeTime) {
  const Shape shape{PipelineSchedule::kGpipe, 3, 1, 1};
  const std::vector<TimedStage> timed = time_actions(actions_of(shape), {.forward = {1, 1, 1}, .backward = {2, 2, 2}, .transfer = 0.5});
  EXPECT_DOUBLE_EQ(timed[2].passes.front().begin, 3);
  EXPECT_DOUBLE_EQ(timed[0].passes.back().end, 3 * 1 + 3 * 2 + 4 * 0.5);
  const std::vector<TimedStage> late = time_actions(actions_of(shape), {.forward = {1, 1, 1}, .backward = {2, 2, 2}, .begin = {0, 0, 7}});
  EXPECT_DOUBLE_EQ(late[2].passes.front().begin, 7);
}

}  // namespace
}  // namespace galley
