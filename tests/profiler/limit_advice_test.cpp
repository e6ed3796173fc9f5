// below_limit: for each kind of bound a synthetic profile, with its operators, its remedy and what a fragment sets.

#include "libcore/profiler/limit_advice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace galley {
namespace {

/// One second in 10 steps of 100 ms, with one operator that takes `seconds` and reaches `reached` of its limit.
Profile profile_of(const std::string& type, const std::string& phase, double seconds, double reached, int64_t calls, bool compute_bound) {
  OperatorRow row;
  row.module = "layer1.0.conv1";
  row.type = type;
  row.phase = phase;
  row.backend = "cpu";
  row.calls = calls;
  row.self_s = seconds;
  row.limit_s = reached * seconds;
  row.flops = row.bytes = 1e9;
  row.executed.f32 = 1e9;
  row.compute_bound = compute_bound;
  Profile profile;
  profile.steps = 10;
  profile.wall_s = 1;
  profile.operators = {row};
  profile.compute_s = seconds;
  profile.gap_s = 1 - seconds;
  profile.work.self_s = row.self_s;
  profile.work.limit_s = row.limit_s;
  profile.memory.planned_bytes = int64_t{1} << 30;
  return profile;
}

ProfileFacts facts_of() {
  ProfileFacts facts;
  facts.threads = facts.cores = 4;
  facts.workers = 1;
  facts.prefetch = 4;
  facts.batch = 32;
  facts.batch_key = "train.batch.global";
  facts.memory_bytes = int64_t{16} << 30;
  return facts;
}

/// The first operator of the advice, after checks that hold for all of them.
BelowLimit first(const Profile& profile, const ProfileFacts& facts) {
  const std::optional<Advice> advice = below_limit(profile, facts);
  if (!advice || advice->operators.empty()) {
    ADD_FAILURE() << "no advice";
    return {};
  }
  EXPECT_FALSE(advice->key.empty());
  EXPECT_GE(advice->gain_s, 0);
  EXPECT_LE(advice->gain_s, profile.wall_s / static_cast<double>(profile.steps));
  for (const BelowLimit& item : advice->operators) {
    EXPECT_FALSE(item.key.empty()) << item.type;
    EXPECT_FALSE(item.remedy.empty()) << item.type;
    EXPECT_NE(advice->message.find(item.type), std::string::npos) << advice->message;
    EXPECT_GE(advice->operators.front().beyond_s, item.beyond_s);
  }
  return advice->operators.front();
}

TEST(BelowLimit, NoneFromHalfOfTheLimitOnOrWithoutLimits) {
  EXPECT_FALSE(below_limit(profile_of("conv2d", "forward", 0.95, 0.6, 100, true), facts_of()));
  EXPECT_FALSE(below_limit(profile_of("conv2d", "forward", 0.95, 0, 100, true), facts_of())) << "limits are unknown";
  EXPECT_TRUE(below_limit(profile_of("conv2d", "forward", 0.95, 0.5, 100, true), facts_of())) << "47.5 % of the step";
}

TEST(BelowLimit, AStepAtFourPercentAlwaysGetsAdvice) {
  for (const bool compute : {false, true}) {
    for (const int64_t calls : {int64_t{10}, int64_t{1000}, int64_t{1000000}}) {
      const Profile profile = profile_of("conv2d", "forward", 0.98, 0.04, calls, compute);
      const std::vector<Advice> advice = advise(profile, facts_of());
      const auto found = std::find_if(advice.begin(), advice.end(), [](const Advice& item) { return item.code == "below_limit"; });
      ASSERT_NE(found, advice.end());
      EXPECT_EQ(found->operators.front().type, "conv2d");
      EXPECT_NE(found->message.find("3.9 %"), std::string::npos) << found->message;
    }
  }
}

TEST(BelowLimit, SharesAndTimeBeyondTheLimit) {
  const BelowLimit item = first(profile_of("conv2d", "forward", 0.9, 0.1, 100, true), facts_of());
  EXPECT_EQ(item.module, "layer1.0.conv1");
  EXPECT_EQ(item.phase, "forward");
  EXPECT_DOUBLE_EQ(item.share, 0.9);
  EXPECT_DOUBLE_EQ(item.reached, 0.1);
  EXPECT_NEAR(item.beyond_s, 0.081, 1e-12);  // 90 ms of a step, 9 ms at the limit
}

TEST(BelowLimit, ComputeUsesBf16OrALargerBatch) {
  Profile profile = profile_of("conv2d", "forward", 0.95, 0.4, 9500, true);  // 100 us per call, 20 of them do not grow with the batch
  profile.machine = {.flops_per_s = 1e11, .bf16_per_s = 2e11, .bytes_per_s = 1e10};
  ProfileFacts facts = facts_of();
  BelowLimit item = first(profile, facts);
  EXPECT_EQ(item.bound, "compute");
  EXPECT_EQ(item.key, "train.batch.global");
  EXPECT_EQ(item.value, "64");
  facts.fast_low_precision = true;
  item = first(profile, facts);
  EXPECT_EQ(item.key, "precision");
  EXPECT_EQ(item.value, "bf16");
  EXPECT_NE(item.remedy.find("2.0 times"), std::string::npos) << item.remedy;
  profile.machine.bf16_per_s = 1.1e11;
  EXPECT_EQ(first(profile, facts).key, "train.batch.global") << "bf16 is hardly faster";
  profile.machine.bf16_per_s = 2e11;
  profile.operators[0].executed = {.bf16 = 1e9};
  EXPECT_EQ(first(profile, facts).key, "train.batch.global") << "it computes in bf16 already";
}

TEST(BelowLimit, ALargerBatchMustFitTheMemory) {
  ProfileFacts facts = facts_of();
  facts.memory_bytes = int64_t{3} << 29;  // 1.5 times the plan
  const BelowLimit item = first(profile_of("conv2d", "forward", 0.95, 0.4, 9500, true), facts);
  EXPECT_EQ(item.key, "model");
  EXPECT_EQ(item.value, "");
}

TEST(BelowLimit, ALargerBatchDoesNotHelpLongCalls) {
  const std::optional<Advice> advice = below_limit(profile_of("conv2d", "forward", 0.95, 0.1, 100, true), facts_of());  // 9.5 ms per call
  ASSERT_TRUE(advice);
  const BelowLimit& item = advice->operators.front();
  EXPECT_EQ(item.bound, "compute");
  EXPECT_EQ(item.key, "model");
  EXPECT_EQ(item.value, "");
  EXPECT_NE(item.remedy.find("--by layer"), std::string::npos) << item.remedy;
}

TEST(BelowLimit, ALargerBatchHalvesWhatDoesNotGrowWithIt) {
  const std::optional<Advice> advice = below_limit(profile_of("conv2d", "forward", 1, 0.4, 10000, true), facts_of());
  ASSERT_TRUE(advice);
  EXPECT_NEAR(advice->gain_s, 1000 * 2e-5 / 2, 1e-12);
}

TEST(BelowLimit, OneGroupForShapesOnBothSidesOfTheRidge) {
  Profile profile = profile_of("conv2d", "forward", 0.6, 0.1, 100, true);
  OperatorRow other = profile.operators[0];
  other.module = "layer1.1.conv1";
  other.self_s = 0.3;
  other.limit_s = 0.03;
  other.compute_bound = false;
  profile.operators.push_back(other);
  profile.gap_s = 0.1;
  const BelowLimit item = first(profile, facts_of());
  EXPECT_EQ(item.bound, "compute") << "of two thirds of the time";
  EXPECT_DOUBLE_EQ(item.share, 0.9);
  EXPECT_EQ(item.module, "layer1.0.conv1");
}

TEST(BelowLimit, RemarksOnTheMachineArePassedOn) {
  ProfileFacts facts = facts_of();
  const Profile profile = profile_of("conv2d", "forward", 0.95, 0.1, 100, true);
  EXPECT_EQ(below_limit(profile, facts)->message.find("uncertain"), std::string::npos);
  facts.disturbed = true;
  EXPECT_NE(below_limit(profile, facts)->message.find("uncertain"), std::string::npos);
}

TEST(BelowLimit, FreeCoresAndTheFormatComeFirst) {
  const Profile profile = profile_of("conv2d", "forward", 0.95, 0.1, 100, true);
  ProfileFacts facts = facts_of();
  facts.threads = 2;
  EXPECT_EQ(first(profile, facts).key, "threads");
  facts.contiguous_forced = true;
  EXPECT_EQ(first(profile, facts).key, "memory_format");
}

TEST(BelowLimit, Bandwidth) {
  const Profile profile = profile_of("batch_norm", "forward", 0.95, 0.1, 100, false);
  ProfileFacts facts = facts_of();
  BelowLimit item = first(profile, facts);
  EXPECT_EQ(item.bound, "memory");
  EXPECT_EQ(item.key, "model");
  facts.fusions_declined = {"bn1: batch_norm + relu: the value between has 2 readers"};
  EXPECT_NE(first(profile, facts).remedy.find("fuse"), std::string::npos);
  facts.fast_low_precision = true;
  EXPECT_EQ(first(profile, facts).key, "precision");
  item = first(profile_of("adamw_update", "update", 0.95, 0.1, 100, false), facts);
  EXPECT_EQ(item.key, "train.batch.global") << "bf16 does not change the optimizer state";
}

TEST(BelowLimit, ShortCallsAreOverhead) {
  const BelowLimit item = first(profile_of("relu", "forward", 0.9, 0.04, 100000, false), facts_of());  // 9 us each
  EXPECT_EQ(item.bound, "overhead");
  EXPECT_EQ(item.key, "train.batch.global");
}

TEST(BelowLimit, TheExecutorIsOverhead) {
  const BelowLimit item = first(profile_of("conv2d", "forward", 0.2, 0.5, 100, true), facts_of());
  EXPECT_EQ(item.type, "(executor)");
  EXPECT_EQ(item.bound, "overhead");
  EXPECT_DOUBLE_EQ(item.share, 0.8);
  EXPECT_EQ(item.key, "train.batch.global");
}

TEST(BelowLimit, ThreadsThatWait) {
  // 95 us per call, 4.75 us at the limit: too little for four threads.
  const Profile little = profile_of("linear", "forward", 0.95, 0.05, 10000, true);
  EXPECT_EQ(first(little, facts_of()).bound, "threads");
  EXPECT_EQ(first(little, facts_of()).key, "train.batch.global");
  ProfileFacts facts = facts_of();
  facts.threads = facts.cores = 1;
  EXPECT_EQ(first(little, facts).bound, "compute") << "one thread waits for no other";
  // No larger batch helps where all of the time grows with it: one thread is to be compared.
  const Profile full = profile_of("linear", "forward", 0.95, 0.05, 10000, true);
  ProfileFacts no_memory = facts_of();
  no_memory.memory_bytes = 1;
  EXPECT_EQ(first(full, no_memory).key, "threads");
  EXPECT_EQ(first(full, no_memory).value, "1");
  no_memory.disturbed = true;
  EXPECT_EQ(first(full, no_memory).value, "") << "other programs may have taken the cores";
  facts.threads = 8;
  facts.cores = 4;
  const BelowLimit item = first(profile_of("conv2d", "forward", 0.95, 0.1, 100, true), facts);
  EXPECT_EQ(item.bound, "threads");
  EXPECT_EQ(item.key, "threads");
  EXPECT_EQ(item.value, "auto");
}

TEST(BelowLimit, Data) {
  Profile profile = profile_of("conv2d", "forward", 0.3, 0.5, 100, true);
  profile.gap_s = 0.01;
  profile.data_s = 0.69;
  ProfileFacts facts = facts_of();
  facts.loads_data = true;
  BelowLimit item = first(profile, facts);
  EXPECT_EQ(item.type, "(waiting for data)");
  EXPECT_EQ(item.bound, "data");
  EXPECT_EQ(item.key, "data.train.workers");
  EXPECT_EQ(item.value, "2");
  facts.workers = facts.cores;
  item = first(profile, facts);
  EXPECT_EQ(item.key, "data.train.pipeline");
  EXPECT_EQ(item.value, "");
}

TEST(BelowLimit, FallbackKernelsSayWhy) {
  Profile profile = profile_of("conv2d", "forward", 0.95, 0.04, 100, true);
  profile.operators[0].note = "onednn: too many channels";
  const BelowLimit item = first(profile, facts_of());
  EXPECT_EQ(item.bound, "kernel");
  EXPECT_NE(item.remedy.find("too many channels"), std::string::npos);
}

TEST(BelowLimit, NamesFewGroupsAndSetsWhatGainsMost) {
  Profile profile = profile_of("conv2d", "forward", 0.5, 0.1, 100, true);
  OperatorRow norm = profile.operators[0];
  norm.type = "batch_norm";
  norm.self_s = 0.4;
  norm.limit_s = 0.04;
  norm.compute_bound = false;
  OperatorRow tiny = norm;
  tiny.type = "softmax";
  tiny.self_s = 0.01;
  tiny.limit_s = 0.001;
  profile.operators.insert(profile.operators.end(), {norm, tiny});
  profile.work.self_s = 0.91;
  profile.work.limit_s = 0.091;
  profile.gap_s = 0.09;
  const std::optional<Advice> advice = below_limit(profile, facts_of());
  ASSERT_TRUE(advice);
  std::vector<std::string> types;
  for (const BelowLimit& item : advice->operators) types.push_back(item.type);
  EXPECT_EQ(types, (std::vector<std::string>{"conv2d", "batch_norm", "(executor)"}))
      << "softmax takes less than 5 % of the time above the limit";
  EXPECT_EQ(advice->key, "train.batch.global") << "of the executor, the only key with a value";
  EXPECT_EQ(advice_fragment({&*advice, 1}), "train:\n  batch:\n    global: 64\n");
}

}  // namespace
}  // namespace galley
