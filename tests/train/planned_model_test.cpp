// Laws: the plan model of a recipe has its parameters, optimizer state and FLOPs; recomputation keeps less and computes more; units follow
// the wrap rule; predicted peak memory of one rank is that of the compiled program; limits and the search agree with the memory of plans.

#include "libcore/train/planned_model.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <tuple>

#include "libcore/train/rank_refusals.h"
#include "libcore/train/step_planner.h"
#include "libcore/train/workload.h"
#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kPlannedGpt = R"(
recipe: 1
name: gpt
model: {type: gpt, n_layer: 3, n_head: 4, n_embd: 64, vocab_size: 256, block_size: 32, dropout: 0}
data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 256}}}
train: {duration: 2 steps, batch: 8, optimizer: {type: adamw, lr: 1e-3}}
)";

PlanModel model_of(const std::vector<std::string>& overrides, int64_t micro = 8) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, overrides);
  Session session(loaded.recipe);
  return planned_model(session, {.micro = micro});
}

TEST(PlannedModel, CountsWhatTheRecipeTrains) {
  const PlanModel model = model_of({});
  // Token and position embeddings, 3 blocks, the last norm; the head is the token embedding.
  const int64_t h = 64, block = 12 * h * h + 13 * h;
  const int64_t expected = 256 * h + 32 * h + 3 * block + 2 * h;
  EXPECT_EQ(model.trained_elements(), expected);
  EXPECT_EQ(model.frozen_elements(), 0);
  EXPECT_EQ(model.bytes.optimizer, 8) << "two f32 moments";
  EXPECT_EQ(model.tokens, 8 * 32);
  // Products: 6 P T without embeddings and vectors, and attention, whose flops depend on the count of masked scores.
  const double products = 6.0 * static_cast<double>(3 * 12 * h * h + 256 * h) * model.tokens;
  const double attention = 3.0 * 3 * 4 * model.tokens * 32 * h;
  EXPECT_GT(model.model_flops, products);
  EXPECT_LT(model.model_flops, products + 1.4 * attention) << "flash attention computes the scores again in the backward pass";
  EXPECT_EQ(model.units.size(), 1u) << "smaller than 100M parameters";
}

TEST(PlannedModel, ActivationsGrowWithTheBatchAndShrinkWithRecomputation) {
  const auto kept = [](const PlanModel& model) {
    return std::accumulate(model.forward.begin(), model.forward.end(), 0.0,
                           [](double sum, const PlanSegment& s) { return sum + s.kept_bytes; });
  };
  const PlanModel one = model_of({}, 4), two = model_of({}, 8), full = model_of({"train.recompute=full"}, 8);
  EXPECT_NEAR(kept(two), 2 * kept(one), 0.05 * kept(two));
  EXPECT_LT(kept(full), 0.6 * kept(two));
  EXPECT_GT(full.flops, two.flops);
  EXPECT_NEAR(full.model_flops, two.model_flops, 1e-6 * two.model_flops);
}

TEST(PlannedModel, UnitsFollowTheWrapRule) {
  const PlanModel model = model_of({"sharding.strategy=fsdp", "sharding.wrap=45k"});
  std::vector<std::string> names;
  for (const Unit& unit : model.units) names.push_back(unit.name);
  EXPECT_EQ(names.size(), 4u) << "three blocks, and what is left";
  const PlanModel named = model_of({"sharding.strategy=fsdp", "sharding.wrap.match=type:linear"});
  EXPECT_GT(named.units.size(), 12u);
  EXPECT_THROW(model_of({"sharding.wrap.match=blocks.*"}), Error);
}

TEST(PlannedModel, FrozenParametersHaveNoGradient) {
  const PlanModel model = model_of({"train.freeze=[{match: \"*wte*\"}]"});
  EXPECT_EQ(model.frozen_elements(), 256 * 64);
}

TEST(StepPlanner, EstimatesWhereMemoryIsTooSmallAndStopsWhenAsked) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  const Cluster cluster = local_cluster({.f32 = 1e11, .bytes = 1e10, .cores = 2, .memory = 1e10}, 1);
  const Session session(loaded.recipe);
  const int64_t needed = Workload::planned_bytes(*Workload::compiled(session, WorkKind::kTrainStep, 8));
  for (const int64_t memory : {needed - 1, needed}) {
    int64_t asked = 0;
    const auto stop = [&asked] { return ++asked > 0; };
    StepPlanner planner(loaded.recipe, 1, cluster,
                        {.runs = kMeasuredRuns, .may_run = [=](int64_t b) { return b <= memory; }, .stop = stop});
    EXPECT_GT(planner.plan().simulation.step_s, 0);
    EXPECT_EQ(planner.measured().has_value(), memory == needed);
    EXPECT_EQ(asked, memory == needed ? 1 : 0) << "asked once, before the first of several runs";
  }
}

TEST(PlannedModel, SumsOverMicroBatchesArePartOfTheUpdate) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  Session session(loaded.recipe);
  const PlanModel once = planned_model(session, {.micro = 2}), four = planned_model(session, {.micro = 2, .accumulation = 4});
  ASSERT_EQ(once.backward.size(), four.backward.size());
  for (size_t i = 0; i < once.backward.size(); ++i) EXPECT_EQ(once.backward[i].live_bytes, four.backward[i].live_bytes) << i;
  EXPECT_GT(four.update.size(), once.update.size());
}

TEST(StepPlanner, PeakOfOneRankIsThatOfTheProgram) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  StepPlanner planner(loaded.recipe, 1, local_cluster({.f32 = 1e11, .bytes = 1e10, .cores = 2, .memory = 1e10}, 1),
                      {.runs = kMeasuredRuns});
  const StepPlan plan = planner.plan();
  const Session session(loaded.recipe);
  EXPECT_DOUBLE_EQ(plan.peak, static_cast<double>(Workload::planned_bytes(*Workload::compiled(session, WorkKind::kTrainStep, 8))));
  EXPECT_DOUBLE_EQ(plan.simulation.exposed_s, 0);
  EXPECT_DOUBLE_EQ(plan.simulation.traffic.sum(), 0);
}

/// Whether ranks on one machine with GPUs train the recipe.
bool trains(Recipe recipe, int ranks) {
  recipe.device.parse("cuda");
  try {
    check_ranks(recipe, {.ranks = ranks, .per_machine = ranks});
    check_offload(recipe, {.accumulation = 1});
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(StepPlanner, TheSearchFindsWhatAllCandidatesOneByOneGive) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  const Cluster cluster = *find_cluster("a100_80gb");
  StepPlanner planner(loaded.recipe, 4, cluster);
  for (const double bytes : {1e9, 2.5e6}) {
    double best = 1e9;
    for (const PlanCandidate& candidate : plan_candidates(loaded.recipe, 4, cluster)) {
      Recipe changed = loaded.recipe;
      candidate.apply(changed, "host");
      if (!trains(changed, 4)) continue;
      try {
        const StepPlan plan = StepPlanner(changed, 4, cluster).plan();
        if (plan.peak <= bytes) best = std::min(best, plan.simulation.step_s);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kRecipe) << error.message();
      }
    }
    const PlanSearch search = planner.fit(bytes, [](int64_t, int64_t) { return true; });
    ASSERT_TRUE(search.best.has_value()) << bytes;
    EXPECT_NEAR(search.best->plan.simulation.step_s, best, 1e-9 * best) << bytes;
  }
}

TEST(StepPlanner, CandidatesCoverMeshes) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  std::set<std::string> meshes;
  for (const PlanCandidate& candidate : plan_candidates(loaded.recipe, 8, *find_cluster("a100_80gb"))) {
    const MeshSection mesh = candidate.mesh.value_or(MeshSection());
    meshes.insert(cat(name_of(candidate.strategy), " ", mesh.data, mesh.shard, mesh.tensor, mesh.pipe));
  }
  for (const char* mesh :
       {"ddp 1111", "fsdp 1111", "tensor 4121", "tensor 1181", "pipeline 1118", "pipeline 2122", "zero1 1421", "fsdp 1214"})
    EXPECT_TRUE(meshes.contains(mesh)) << mesh;
  const LoadedRecipe fixed = test::load_text(kPlannedGpt, {"sharding={strategy: fsdp, mesh: {shard: 4, tensor: 2}}"});
  for (const PlanCandidate& candidate : plan_candidates(fixed.recipe, 8, *find_cluster("a100_80gb"))) {
    EXPECT_EQ(candidate.strategy, ShardingStrategy::kFsdp);
    EXPECT_EQ(candidate.mesh->tensor, 2) << "the recipe's mesh stays";
  }
}

TEST(StepPlanner, TheSearchFindsWhatTrains) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  const Cluster cluster = *find_cluster("a100_80gb");
  StepPlanner planner(loaded.recipe, 8, cluster);
  const auto silent = [](int64_t, int64_t) { return true; };
  for (const double bytes : {1e9, 4e6, 2.5e6}) {
    const PlanSearch search = planner.fit(bytes, silent);
    ASSERT_TRUE(search.best.has_value()) << bytes;
    std::vector<std::string> settings;
    for (const auto& [key, value] : search.best->settings) settings.push_back(cat(key, "=", value));
    EXPECT_TRUE(trains(test::load_text(kPlannedGpt, settings).recipe, 8)) << search.best->fragment;
    EXPECT_EQ(search.best->not_trained, "");
  }
  // Where the recipe asks for nothing else, the answer says that it is only planned.
  const LoadedRecipe stages = test::load_text(kPlannedGpt, {"sharding={strategy: zero1, mesh: {shard: 4, pipe: 2}}"});
  const PlanSearch search = StepPlanner(stages.recipe, 8, cluster).fit(1e9, silent);
  ASSERT_TRUE(search.best.has_value());
  EXPECT_NE(search.best->not_trained, "");
  EXPECT_TRUE(search.best->fragment.starts_with("# galley-train cannot train this yet: ")) << search.best->fragment;
}

TEST(StepPlanner, TheSearchKeepsToItsBytesAndIsFastest) {
  const LoadedRecipe loaded = test::load_text(kPlannedGpt, {});
  Cluster cluster = *find_cluster("a100_80gb");
  StepPlanner planner(loaded.recipe, 4, cluster);
  const auto silent = [](int64_t, int64_t) { return true; };
  const double roomy = planner.fit(1e9, silent).best->plan.simulation.step_s;
  const PlanSearch tight = planner.fit(3e6, silent);
  ASSERT_TRUE(tight.best.has_value());
  EXPECT_LE(tight.best->plan.peak, 3e6);
  EXPECT_GE(tight.best->plan.simulation.step_s, roomy);
  const PlanSearch none = planner.fit(1e3, silent);
  EXPECT_FALSE(none.best.has_value());
  int64_t counted = 0;
  for (const PlanRejection& rejection : none.rejected) counted += rejection.candidates;
  EXPECT_EQ(counted, none.candidates) << "each has a reason";
  counted = 1;
  for (const PlanRejection& rejection : tight.rejected) counted += rejection.candidates;
  EXPECT_EQ(counted, tight.candidates);
  // The largest micro-batch fits, and one that is 10 % larger does not.
  cluster.memory = 64e6;
  StepPlanner small(loaded.recipe, 2, cluster);
  const std::optional<int64_t> micro = small.limits().micro;
  ASSERT_TRUE(micro.has_value());
  const auto fits = [&](int64_t samples) {
    const LoadedRecipe other = test::load_text(kPlannedGpt, {cat("train.batch.global=", 2 * samples), cat("train.batch.micro=", samples)});
    return StepPlanner(other.recipe, 2, cluster).plan().fits;
  };
  EXPECT_TRUE(fits(*micro));
  EXPECT_FALSE(fits(*micro + *micro / 10 + 1));
}

TEST(PlannedBatch, ReplicasAreMicroBatchesOfTheRankThatHasMost) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {"deterministic=true", "train.batch={global: 20, micro: 5}"});
  for (const auto& [ranks, passes] : {std::pair(1, 8), std::pair(2, 4), std::pair(3, 3), std::pair(5, 2), std::pair(8, 1)}) {
    JobPlan job;
    job.mesh.data = ranks;
    const BatchPlan batch = planned_batch(loaded.recipe, job);
    EXPECT_EQ(batch.micro, 3) << ranks;
    EXPECT_EQ(batch.accumulation, passes) << ranks;
    EXPECT_EQ(batch.global, 20);
  }
}

TEST(PlannedBatch, PipelinesHaveFourMicroBatchesForEachStage) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {"train.batch=24", "sharding.strategy=pipeline"});
  for (const auto& [pipe, chunks, count] : {std::tuple(2, 1, 8), std::tuple(4, 1, 12), std::tuple(3, 2, 12), std::tuple(5, 1, 12)}) {
    JobPlan job;
    job.mesh.pipe = pipe;
    job.chunks = chunks;
    const BatchPlan batch = planned_batch(loaded.recipe, job);
    EXPECT_EQ(batch.accumulation, count) << pipe;
    EXPECT_EQ(batch.micro, 24 / count) << pipe;
  }
}

}  // namespace
}  // namespace galley
