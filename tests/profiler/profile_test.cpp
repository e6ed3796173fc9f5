// Recording and summation: nothing is lost, and the figures match the graph.

#include "libcore/profiler/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

#include "libcore/passes/recompute.h"
#include "tests/profiler/recorded.h"

namespace galley {
namespace {

using test::RecordedRun;

const MachineLimits kMachine{.flops_per_s = 1e11, .bytes_per_s = 1e10, .instruction_set = "none"};

TEST(Schedule, FollowsTheNamesOfTorch) {
  const ProfileSchedule schedule{.skip_first = 2, .wait = 1, .warmup = 1, .active = 2, .repeat = 2};
  std::string actions;
  for (int64_t k = 0; k < 12; ++k) actions += "-wR"[static_cast<int>(schedule.at(k))];
  EXPECT_EQ(actions, "---wRR-wRR--");  // skip skip | wait warmup active active | again | off
  EXPECT_EQ(schedule.steps(), 10);
}

TEST(Profile, SelfTimesAndGapsAreTheWallTime) {
  RecordedRun run;
  test::prepare_training(run, 16);
  run.step(1);
  run.recorder.clear();
  const int64_t begin = steady_ns();
  for (int64_t k = 2; k <= 6; ++k) run.step(k);
  const double wall = static_cast<double>(steady_ns() - begin) * 1e-9;
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  EXPECT_EQ(profile.steps, 5);
  double self = 0;
  for (const OperatorRow& row : profile.operators) self += row.self_s;
  EXPECT_NEAR(self, profile.compute_s, 1e-9);
  EXPECT_GE(profile.gap_s, 0);
  EXPECT_EQ(profile.data_s, 0);
  // An external clock saw the same window, except for the calls at its ends.
  EXPECT_TRUE(std::abs(self + profile.gap_s + profile.data_s - wall) <= 0.02 * wall + 2e-5)
      << self << " + " << profile.gap_s << " against " << wall;
  double steps = 0;
  for (double s : profile.step_s) steps += s;
  EXPECT_NEAR(steps, profile.wall_s, 1e-9);
}

TEST(Profile, EveryRunNodeIsCountedOnceAStep) {
  RecordedRun run;
  test::prepare_training(run);
  run.step(1);  // with `prepare`, if there is any
  run.recorder.clear();
  for (int64_t k = 2; k <= 4; ++k) run.step(k);
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  int64_t calls = 0;
  double flops = 0;
  for (const OperatorRow& row : profile.operators) {
    calls += row.calls;
    flops += row.flops;
  }
  EXPECT_EQ(calls, 3 * static_cast<int64_t>(run.program->steps().size() - run.program->prepare_steps()));
  // Convolutions by hand, two flops per multiply-add: batch 3, 8x8 outputs, 3x3 kernels; conv3 has stride 2.
  const double conv0 = 2.0 * 3 * 64 * 8 * 3 * 9, conv12 = 2.0 * 3 * 64 * 8 * 8 * 9, conv3 = 2.0 * 3 * 16 * 16 * 8 * 9;
  double forward = 0;
  for (const OperatorRow& row : profile.operators) {
    if (row.type == "conv2d" && row.phase == "forward") forward += row.flops;
  }
  EXPECT_DOUBLE_EQ(forward, 3 * (conv0 + 2 * conv12 + conv3));
  EXPECT_DOUBLE_EQ(profile.work.flops, flops);
}

TEST(Profile, GroupsAndModulesSumToTheSame) {
  RecordedRun run;
  test::prepare_training(run);
  for (int64_t k = 1; k <= 2; ++k) run.step(k);
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  for (ProfileGroup group : {ProfileGroup::kOperator, ProfileGroup::kModule, ProfileGroup::kShape, ProfileGroup::kLayer}) {
    double self = 0, percent = 0;
    for (const OperatorRow& row : grouped(profile, group)) {
      self += row.self_s;
      percent += row.percent;
    }
    EXPECT_NEAR(self, profile.compute_s, 1e-9);
    EXPECT_NEAR(percent, 100 * profile.compute_s / profile.wall_s, 1e-6);
  }
  ASSERT_FALSE(profile.modules.empty());
  EXPECT_EQ(profile.modules[0].path, "");
  EXPECT_NEAR(profile.modules[0].total_s, profile.compute_s, 1e-9);
  double self = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < profile.modules.size(); ++i) {
    const ModuleRow& row = profile.modules[i];
    self += row.self_s;
    names.insert(row.path);
    EXPECT_LT(row.parent, static_cast<int>(i)) << "parents stand before children";
    EXPECT_NEAR(row.total_s, row.forward_s + row.backward_s + row.update_s, 1e-9) << row.path;
  }
  EXPECT_NEAR(self, profile.compute_s, 1e-9);
  EXPECT_TRUE(names.contains("conv2") && names.contains("fc"));
  for (const ModuleRow& row : profile.modules) {
    if (row.path != "fc") continue;
    EXPECT_EQ(row.parameter_bytes, 4 * (5 * 16 + 5));
  }
}

/// What functions of several modules cost as one operator cannot be told apart: the module that contains them all has it.
TEST(Profile, BooksAChainUnderTheModuleThatContainsItsFunctions) {
  Graph graph;
  Value v = graph.add_input("x", test::f32({64, 64}), ValueRole::kInput);
  for (const char* path : {"net.block.act", "net.block.gate", "net.block.act2"}) {
    graph.set_path(path);
    v = tanh(v);
  }
  graph.add_output("y", v);
  RecordedRun run;
  test::prepare(run, graph);
  if (run.program->steps().size() != 1) GTEST_SKIP() << "the back end of this build makes no chains";
  run.step(1);
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  std::vector<std::string> modules;
  for (const ModuleRow& row : profile.modules) modules.push_back(row.path);
  EXPECT_EQ(modules, (std::vector<std::string>{"", "net", "net.block"}));
  EXPECT_EQ(profile.modules.back().self_s, profile.compute_s);
  ASSERT_EQ(profile.operators.size(), 1u);
  EXPECT_EQ(profile.operators[0].module, "net.block");
}

TEST(SlowImplementations, ArePlainLoopsAndUnrolledImages) {
  for (const char* name : {"ref:any", "simple_ref:any", "gemm:jit", "gemm:ref"}) EXPECT_TRUE(is_slow(name)) << name;
  for (const char* name : {"brgconv:avx2", "jit:avx512_core", "brg_matmul:avx512_core_amx", "", "ref"}) EXPECT_FALSE(is_slow(name)) << name;
}

TEST(Profile, WaitsForDataAreNoGap) {
  RecordedRun run;
  test::prepare_training(run);
  run.recorder.begin_step(1);
  const int64_t asked = steady_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.recorder.fetched(asked, steady_ns());
  run.execution->run({.observer = &run.recorder});
  run.recorder.end_step();
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  EXPECT_GE(profile.data_s, 0.02);
  EXPECT_NEAR(profile.data_s + profile.compute_s + profile.gap_s, profile.wall_s, 1e-9);
  ASSERT_EQ(profile.waits_s.size(), 1u);
  EXPECT_DOUBLE_EQ(profile.waits_s[0], profile.data_s);
}

TEST(Profile, StepsThatWereSkippedAreNotInTheWindow) {
  RecordedRun run;
  test::prepare_training(run);
  run.step(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  run.step(5);
  run.step(6);  // follows 5: the time between belongs to the window
  const std::vector<StepMark>& marks = run.recorder.recording().steps;
  const int64_t window = (marks[0].end_ns - marks[0].begin_ns) + (marks[2].end_ns - marks[1].begin_ns);
  const Profile profile = make_profile(run.recorder.recording(), kMachine);
  EXPECT_NEAR(profile.wall_s, static_cast<double>(window) * 1e-9, 1e-9);
  EXPECT_EQ(profile.step_s.size(), 3u);
}

TEST(MemoryTimeline, AgreesWithThePlan) {
  RecordedRun run;
  test::prepare_training(run, 8);
  const MemoryTimeline timeline = memory_timeline(*run.program);
  ASSERT_EQ(timeline.steps.size(), run.program->steps().size());
  int64_t parameters = 0, state = 0;
  for (ValueId id : run.program->graph().inputs()) {
    const ValueInfo& info = run.program->graph().value(id);
    if (info.role == ValueRole::kParameter) parameters += info.type.bytes();
    if (info.role == ValueRole::kState) state += info.type.bytes();
  }
  const auto of = [](const MemorySizes& sizes, MemoryCategory category) { return sizes[static_cast<size_t>(category)]; };
  for (const MemorySizes& sizes : timeline.steps) {
    EXPECT_EQ(of(sizes, MemoryCategory::kParameters), parameters);
    EXPECT_EQ(of(sizes, MemoryCategory::kState), state);
    EXPECT_LE(total(sizes), timeline.planned_bytes);
  }
  EXPECT_LE(timeline.arena_live_bytes, timeline.arena_bytes) << "live values cannot exceed the arena";
  EXPECT_GT(timeline.arena_live_bytes, timeline.arena_bytes / 2) << "nor can the arena be mostly holes";
  // Activations accumulate during the forward pass and are gone when the updates end; gradients exist only after the forward pass.
  size_t first_backward = run.program->prepare_steps();
  while (run.program->graph().nodes()[static_cast<size_t>(run.program->steps()[first_backward].node)].phase != Phase::kBackward)
    ++first_backward;
  EXPECT_EQ(of(timeline.steps[first_backward - 1], MemoryCategory::kGradients), 0);
  EXPECT_GT(of(timeline.steps[first_backward], MemoryCategory::kGradients), 0);
  EXPECT_LT(of(timeline.steps.back(), MemoryCategory::kActivations), of(timeline.steps[first_backward], MemoryCategory::kActivations) / 2);
}

TEST(MemoryTimeline, CountsSharedMemoryOnce) {
  RecordedRun run;
  test::prepare_training(run, 8);
  const Graph& graph = run.program->graph();
  const MemoryTimeline timeline = memory_timeline(*run.program);
  const std::vector<int> made = graph.producers();
  const std::vector<std::vector<int>> users = graph.users();
  // Counts the bytes of the arena that some live value covers: views and in-place results cover the same bytes.
  for (size_t s = 0; s < timeline.steps.size(); ++s) {
    const int node = run.program->steps()[s].node;
    std::vector<bool> covered(static_cast<size_t>(timeline.arena_bytes));
    for (size_t v = 0; v < graph.value_count(); ++v) {
      const MemorySlot& place = run.program->memory().values[v];
      if (place.region != MemorySlot::Region::kArena || made[v] > node) continue;
      int last = users[v].empty() ? made[v] : users[v].back();
      for (const auto& [name, id] : graph.outputs()) last = id == static_cast<ValueId>(v) ? static_cast<int>(graph.nodes().size()) : last;
      if (last < node) continue;
      std::fill_n(covered.begin() + place.offset, place.bytes, true);
    }
    const MemorySizes& sizes = timeline.steps[s];
    const int64_t arena = sizes[static_cast<size_t>(MemoryCategory::kActivations)] + sizes[static_cast<size_t>(MemoryCategory::kGradients)];
    ASSERT_EQ(arena, std::count(covered.begin(), covered.end(), true)) << "step " << s;
  }
}

TEST(MemoryTimeline, KnowsWhatIsRunAgain) {
  test::TinyNet net;
  test::build_tiny_net(net);
  test::add_training(net);
  const auto count = [](const Graph& graph) {
    int64_t clones = 0;
    for (bool clone : recomputed_nodes(graph)) clones += clone;
    return clones;
  };
  EXPECT_EQ(count(net.graph), 0) << "nothing is recomputed without the pass";
  const PassReport report = recompute(net.graph, recompute_selective());
  EXPECT_EQ(count(net.graph), static_cast<int64_t>(report.done.size()));
  EXPECT_GT(report.done.size(), 0u);
}

}  // namespace
}  // namespace galley
