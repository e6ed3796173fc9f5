// Rules of advice: planted bottlenecks are found, with the right key and a gain in the right range; a clean run gets no advice.

#include "libcore/profiler/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "libcore/passes/fuse.h"
#include "libcore/passes/recompute.h"
#include "tests/profiler/other_advice.h"
#include "tests/profiler/recorded.h"

namespace galley {
namespace {

using test::other_advice;

OperatorRow row(const std::string& type, const std::string& phase, double seconds, int64_t calls = 10) {
  OperatorRow made;
  made.module = "layer";
  made.type = type;
  made.phase = phase;
  made.backend = "onednn";
  made.calls = calls;
  made.self_s = seconds;
  made.flops = made.bytes = 1e9;
  made.limit_s = 0.6 * seconds;
  made.compute_bound = true;
  return made;
}

/// Ten steps of 100 ms: a ResNet without bottlenecks.
Profile clean() {
  Profile profile;
  profile.steps = 10;
  profile.wall_s = 1;
  profile.operators = {row("conv2d", "forward", 0.3), row("conv2d_backward_data", "backward", 0.3),
                       row("conv2d_backward_weights", "backward", 0.28), row("batch_norm", "forward", 0.08),
                       row("sgd_update", "update", 0.02)};
  for (const OperatorRow& item : profile.operators) {
    profile.compute_s += item.self_s;
    profile.work.limit_s += item.limit_s;
    profile.work.self_s += item.self_s;
  }
  profile.data_s = 0.005;
  profile.waits_s.assign(10, 0.0005);
  profile.gap_s = profile.wall_s - profile.compute_s - profile.data_s;
  profile.memory.planned_bytes = int64_t{1} << 30;
  profile.memory.steps.resize(1);
  ModuleRow model;
  model.made_bytes = int64_t{1} << 28;
  profile.modules.push_back(model);
  return profile;
}

ProfileFacts clean_facts() {
  ProfileFacts facts;
  facts.loads_data = true;
  facts.workers = 1;
  facts.prefetch = 4;
  facts.threads = facts.cores = 4;
  facts.has_convolutions = true;
  facts.batch = 32;
  facts.memory_bytes = int64_t{16} << 30;
  return facts;
}

std::set<std::string> codes(const std::vector<Advice>& advice) {
  std::set<std::string> names;
  for (const Advice& item : advice) names.insert(item.code);
  return names;
}

TEST(Advice, ACleanRunGetsNone) { EXPECT_EQ(codes(advise(clean(), clean_facts())), std::set<std::string>{}); }

TEST(Advice, SlowDataWantsWorkers) {
  Profile profile = clean();
  profile.data_s = 0.5;
  profile.wall_s = 1.485;
  profile.waits_s.assign(10, 0.05);
  const Advice advice = test::only(profile, clean_facts(), "data_bound");
  EXPECT_EQ(advice.key, "data.train.workers");
  EXPECT_EQ(advice.value, "2");
  // Loading takes a whole step; with twice the workers it takes half, and then computation is the limit.
  EXPECT_NEAR(advice.gain_s, 0.05, 0.002);
  ProfileFacts facts = clean_facts();
  facts.workers = 0;
  EXPECT_EQ(test::only(profile, facts, "data_bound").value, "1");
  facts.workers = facts.cores;
  const Advice full = test::only(profile, facts, "data_bound");
  EXPECT_EQ(full.key, "data.train.pipeline");
  EXPECT_EQ(full.value, "") << "no value can be given";
  facts.loads_data = false;
  EXPECT_TRUE(other_advice(profile, facts).empty());
  profile.data_s = 0.08;  // below a tenth of a step
  profile.wall_s = 1.065;
  profile.waits_s.assign(10, 0.008);
  EXPECT_TRUE(advise(profile, clean_facts()).empty());
}

TEST(Advice, BurstsWantALongerQueue) {
  Profile profile = clean();
  profile.data_s = 0.5;
  profile.wall_s = 1.485;
  profile.waits_s.assign(10, 0);
  profile.waits_s[3] = profile.waits_s[8] = 0.25;
  const Advice advice = test::only(profile, clean_facts(), "data_bound");
  EXPECT_EQ(advice.key, "data.train.prefetch");
  EXPECT_EQ(advice.value, "8");
}

TEST(Advice, ContiguousConvolutions) {
  ProfileFacts facts = clean_facts();
  facts.contiguous_forced = true;
  const Advice advice = test::only(clean(), facts, "contiguous_forced");
  EXPECT_EQ(advice.key, "memory_format");
  EXPECT_EQ(advice.value, "auto");
  EXPECT_NEAR(advice.gain_s, 0.26 * 0.096, 1e-9);  // a quarter of the spatial operators' 96 ms
  facts.has_convolutions = false;
  EXPECT_TRUE(advise(clean(), facts).empty());
}

TEST(Advice, ReordersAreMeasured) {
  Profile profile = clean();
  profile.operators.push_back(row("reorder", "forward", 0.1));
  profile.wall_s += 0.1;
  ProfileFacts facts = clean_facts();
  facts.reorders = {{.path = "head", .reason = "reshape needs contiguous", .bytes = 1 << 20}};
  const Advice advice = test::only(profile, facts, "reorders");
  EXPECT_NEAR(advice.gain_s, 0.01, 1e-9);
  EXPECT_FALSE(advice.modeled);
  EXPECT_NE(advice.message.find("reshape needs contiguous"), std::string::npos);
}

TEST(Advice, SlowKernels) {
  Profile profile = clean();
  profile.operators[1].note = "onednn: too many channels";
  profile.operators[1].limit_s = 0.01;
  const Advice advice = test::only(profile, clean_facts(), "slow_kernels");
  EXPECT_NEAR(advice.gain_s, (0.3 - 0.01 / 0.35) / 10, 1e-9);
  EXPECT_NE(advice.message.find("too many channels"), std::string::npos);
}

TEST(Advice, Recomputation) {
  Profile profile = clean();
  OperatorRow again = row("batch_norm", "backward", 0.1);
  again.recomputed = true;
  profile.operators.push_back(again);
  ProfileFacts facts = clean_facts();
  facts.recompute = true;
  EXPECT_EQ(test::only(profile, facts, "recompute_unneeded").value, "null");
  facts.memory_bytes = int64_t{2} << 30;  // without it the run might not fit
  EXPECT_TRUE(advise(profile, facts).empty());
  facts.recompute = false;
  Profile large = clean();
  large.memory.planned_bytes = int64_t{15} << 29;
  large.memory.steps[0][static_cast<size_t>(MemoryCategory::kActivations)] = int64_t{5} << 30;
  facts.memory_bytes = int64_t{8} << 30;
  const Advice advice = test::only(large, facts, "recompute_cheap");
  EXPECT_EQ(advice.key, "train.recompute");
  EXPECT_EQ(advice.value, "selective");
  EXPECT_LT(advice.gain_s, 0) << "it costs time";
  EXPECT_GT(advice.gain_bytes, 0);
}

TEST(Advice, FewThreadsSmallBatchesAndPasses) {
  ProfileFacts facts = clean_facts();
  facts.threads = 1;
  EXPECT_EQ(test::only(clean(), facts, "threads_few").key, "threads");
  facts = clean_facts();
  facts.accumulation = 4;
  Profile gaps = clean();
  gaps.gap_s += 0.1;
  gaps.wall_s += 0.1;
  const Advice passes = test::only(gaps, facts, "accumulation");
  EXPECT_EQ(passes.key, "train.batch.micro");
  EXPECT_NEAR(passes.gain_s, 0.0115 * 0.75, 1e-3);
  Profile small = clean();
  for (OperatorRow& item : small.operators) {
    item.calls = 1000000;  // a microsecond or less each
    item.limit_s = 0.1 * item.self_s;
  }
  small.work.limit_s = 0.1 * small.work.self_s;
  const Advice advice = test::only(small, clean_facts(), "batch_small");
  EXPECT_EQ(advice.key, facts.batch_key);
  EXPECT_EQ(advice.value, "64");
}

TEST(Advice, PrecisionWhereTheMachineHasIt) {
  ProfileFacts facts = clean_facts();
  facts.fast_low_precision = true;
  EXPECT_EQ(test::only(clean(), facts, "precision").value, "bf16");
}

TEST(Advice, AMissedFusionIsFoundInARealRun) {
  test::TinyNet net;
  test::build_tiny_net(net);
  // A second reader of bn1's result keeps its relu apart.
  for (const Node& node : std::deque<Node>(net.graph.nodes())) {
    if (node.path == "bn1" && node.is("batch_norm")) net.graph.add_output("seen", node.outputs[0]);
  }
  ProfileFacts facts;
  facts.fusions_declined = fuse_training(net.graph).declined;
  ASSERT_EQ(facts.fusions_declined.size(), 1u);
  test::add_training(net);
  test::RecordedRun run;
  test::prepare(run, net.graph);
  for (int64_t k = 1; k <= 3; ++k) run.step(k);
  facts.threads = facts.cores = 1;
  const std::vector<Advice> advice = advise(make_profile(run.recorder.recording(), {.flops_per_s = 1e11, .bytes_per_s = 1e10}), facts, 0);
  const auto found = std::find_if(advice.begin(), advice.end(), [](const Advice& item) { return item.code == "fusion_missed"; });
  ASSERT_NE(found, advice.end());
  EXPECT_NE(found->message.find("bn1: batch_norm + relu"), std::string::npos) << found->message;
  EXPECT_GT(found->gain_s, 0);
}

TEST(Advice, SlowKernelsAreFoundInARealRun) {
  test::RecordedRun run;
  CompileOptions options;
  options.backend = open_backend("ref");
  test::prepare_training(run, 3, options);
  for (int64_t k = 1; k <= 2; ++k) run.step(k);
  ProfileFacts facts;
  const std::vector<Advice> advice = advise(make_profile(run.recorder.recording(), {.flops_per_s = 1e11, .bytes_per_s = 1e10}), facts);
  EXPECT_TRUE(codes(advice).contains("slow_kernels"));
}

TEST(Advice, TheFragmentIsYaml) {
  const std::vector<Advice> advice{{.code = "a", .key = "data.train.workers", .value = "2"},
                                   {.code = "b", .key = "threads", .value = "auto"},
                                   {.code = "c", .key = "data.train.prefetch", .value = "8"},
                                   {.code = "d", .key = "threads", .value = "7"},
                                   {.code = "e", .key = "model"}};
  EXPECT_EQ(advice_fragment(advice), "data:\n  train:\n    prefetch: 8\n    workers: 2\nthreads: auto\n");
  EXPECT_EQ(advice_fragment({}), "");
}

TEST(Advice, EveryRuleHasANameAndAWord) {
  std::set<std::string_view> names;
  for (const AdviceRule& rule : advice_rules()) {
    EXPECT_FALSE(rule.doc.empty());
    EXPECT_TRUE(names.insert(rule.code).second) << rule.code;
  }
  EXPECT_EQ(names.size(), 16u) << "a new rule needs a test above, in integer_advice_test.cpp or in limit_advice_test.cpp";
}

}  // namespace
}  // namespace galley
