// The planner's parameters, gradients and optimizer state of a rank are those that training holds, to the byte.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libcore/comm/local.h"
#include "libcore/dist/cluster.h"
#include "libcore/ops/collective.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/step.h"
#include "libcore/train/step_planner.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kPlannedStatesGpt = R"(
recipe: 1
name: gpt
model: {type: gpt, n_layer: 2, n_head: 2, n_embd: 36, vocab_size: 67, block_size: 16}
data: {train: {source: {type: synthetic, samples: 240, values: integer, high: 64}}}
train:
  duration: 6 steps
  batch: {global: 60, micro: auto}
  optimizer: {type: adamw, lr: 1e-3, weight_decay: 0.1, groups: [{match: "ndim:1", weight_decay: 0}]}
  clip: 1.0
)";

/// What one rank holds, from the graph of its step.
ModelBytes held_bytes(const LoadedRecipe& loaded, int ranks, int rank) {
  const auto communicators = local_communicators(ranks);
  const Session session(loaded.recipe);
  Engine engine(session.backend());
  const BatchPlan batch = plan_batch(*loaded.recipe.train.batch, ranks);
  const TrainStep step(session, engine, session.usual_types(batch.micro, true), batch,
                       {.total_steps = 6, .steps_per_epoch = 3, .samples_per_step = static_cast<double>(batch.global)}, {},
                       communicators[static_cast<size_t>(rank)].get());
  ModelBytes bytes;
  // Programs may hold copies of parameters in other formats: sizes are those of the logical arrays.
  const auto elements = [](const TensorType& type) { return static_cast<double>(type.shape.elements() * dtype_size(type.dtype)); };
  const Graph& graph = step.program().graph();
  for (const ValueId id : graph.inputs()) {
    if (graph.value(id).role == ValueRole::kParameter) bytes.parameters += elements(graph.type(id));
  }
  for (const StateSpec& state : step.states()) {
    if (!state.name.ends_with(".grad")) bytes.optimizer += elements(state.type);
  }
  // Sums over ranks of gradients arrive in these arrays.
  for (const Node& node : graph.nodes()) {
    const std::string_view op = node.op->name;
    if (node.phase != Phase::kBackward || (op != "all_reduce_wait" && op != "reduce_scatter_wait")) continue;
    const auto* between = dynamic_cast<const CollectiveAttrs*>(node.attributes.get());
    if (between != nullptr && between->ranks > 0) continue;  // hybrid: sums of the same ranges, in their memory
    if (graph.type(node.outputs[0]).shape.elements() > 1) bytes.gradients += elements(graph.type(node.outputs[0]));  // not the loss
  }
  return bytes;
}

void expect_planned(const std::vector<std::string>& overrides, int ranks) {
  const LoadedRecipe loaded = test::load_text(kPlannedStatesGpt, overrides);
  StepPlanner planner(loaded.recipe, ranks, *find_cluster("a100_80gb"));
  const ModelBytes planned = planner.plan().stages.front().model;
  for (const int rank : {0, ranks - 1}) {
    const ModelBytes held = held_bytes(loaded, ranks, rank);
    EXPECT_GT(held.gradients, 0);
    EXPECT_EQ(planned.parameters, held.parameters) << overrides.front() << ", " << ranks << " ranks";
    EXPECT_EQ(planned.gradients, held.gradients) << overrides.front() << ", " << ranks << " ranks";
    EXPECT_EQ(planned.optimizer, held.optimizer) << overrides.front() << ", " << ranks << " ranks";
  }
}

TEST(PlannedStates, EqualThoseOfTrainingToTheByte) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    for (const int ranks : {2, 3, 5}) {
      expect_planned({cat("sharding.strategy=", strategy), "sharding.bucket=16KiB", "sharding.wrap=10k"}, ranks);
    }
  }
}

/// What the stages of a pipeline hold: parameters, and states of the optimizer, by rank.
void expect_stages(std::string_view text, std::vector<std::string> overrides, int stages, int copies) {
  overrides.insert(overrides.end(), {"sharding.strategy=pipeline", cat("sharding.stages=", stages), "train.batch.micro=5"});
  const LoadedRecipe loaded = test::load_text(text, overrides);
  const int ranks = stages * copies;
  const StepPlan plan = StepPlanner(loaded.recipe, ranks, *find_cluster("h100_sxm")).plan();
  ASSERT_EQ(std::ssize(plan.stages), stages);
  const int64_t global = loaded.recipe.train.batch->global;
  const int replicas = static_cast<int>(global / 5);
  const auto communicators = local_communicators(ranks);
  std::vector<double> parameters(static_cast<size_t>(ranks)), states(parameters.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < parameters.size(); ++rank) {
    threads.emplace_back([&, rank] {  // ranks agree on their threads
      const Session session(loaded.recipe);
      Engine engine(session.backend());
      const BatchPlan batch = plan_replicas(*loaded.recipe.train.batch, replicas, copies);
      TrainStep step(session, engine, session.usual_types(5, true), batch,
                     {.total_steps = 6, .steps_per_epoch = 3, .samples_per_step = static_cast<double>(global)}, {},
                     communicators[rank].get(), {.count = replicas});
      for (const ParameterSpec& spec : step.parameters()) {
        if (spec.role == ValueRole::kParameter && step.store().has(spec.name)) parameters[rank] += static_cast<double>(spec.type.bytes());
      }
      for (const StateSpec& state : step.states()) states[rank] += static_cast<double>(state.type.bytes());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    const ModelBytes& of = plan.stages[static_cast<size_t>(rank / copies)].model;
    EXPECT_GT(of.parameters, 0);
    EXPECT_EQ(of.parameters, parameters[static_cast<size_t>(rank)]) << stages << " stages, " << copies << " copies, rank " << rank;
    EXPECT_EQ(of.optimizer, states[static_cast<size_t>(rank)]) << stages << " stages, " << copies << " copies, rank " << rank;
  }
}

/// Stages of galley-plan, on any cluster, are those of training.
TEST(PlannedStates, OfStages) {
  for (const int copies : {1, 2}) expect_stages(kPlannedStatesGpt, {"sharding.split=[transformer.h.1]"}, 2, copies);
  // The embedding of tokens is read by the last stage, too.
  for (const int stages : {2, 4}) expect_stages(kPlannedStatesGpt, {}, stages, 1);
  constexpr std::string_view kRest = R"(
data: {train: {source: {type: synthetic, samples: 40, shape: [3, 8, 8], classes: 10}}}
train: {duration: 1 step, batch: 10, optimizer: {type: adamw, lr: 0.01}}
)";
  for (const int stages : {2, 3}) {
    expect_stages(cat("recipe: 1\nname: a\nmodel: {type: cifar_resnet20, num_classes: 10}", kRest), {}, stages, 1);
    expect_stages(cat("recipe: 1\nname: a\nmodel: {type: mlp, num_classes: 10, hidden: [16, 24, 8, 40]}", kRest), {}, stages, 1);
  }
}

TEST(PlannedStates, OfPowerSgd) {
  for (const char* feedback : {"true", "false"}) {
    const LoadedRecipe loaded = test::load_text(
        kPlannedStatesGpt, {"sharding.strategy=ddp", cat("sharding.hook={type: power_sgd, rank: 4, error_feedback: ", feedback, "}")});
    const auto communicators = local_communicators(3);
    const Session session(loaded.recipe);
    Engine engine(session.backend());
    const BatchPlan batch = plan_batch(*loaded.recipe.train.batch, 3);
    const TrainStep step(session, engine, session.usual_types(batch.micro, true), batch,
                         {.total_steps = 6, .steps_per_epoch = 3, .samples_per_step = 60}, {}, communicators[1].get());
    double held = 0;  // errors, and both factors
    for (const StateSpec& state : step.states()) {
      if (!is_hook_state(state.name)) continue;
      held += static_cast<double>(state.type.bytes());
      if (state.own) continue;
      for (const ParameterSpec& spec : step.parameters()) {
        if (spec.name == state.of) held += 4.0 * 4 * static_cast<double>(spec.type.shape[0]);
      }
    }
    StepPlanner planner(loaded.recipe, 3, *find_cluster("a100_80gb"));
    const StepPlan plan = planner.plan();
    EXPECT_GT(held, 0);
    EXPECT_EQ(plan.stages.front().phases.front().communication, held) << feedback;
    // What the ranks sum: factors, and what has none.
    double sums = 0;
    for (const ParameterSpec& spec : step.parameters()) {
      const auto sizes = factor_sizes(spec.type, 4);
      sums += 4.0 * static_cast<double>(sizes ? 4 * (sizes->rows + sizes->columns) : spec.type.elements());
    }
    EXPECT_NEAR(plan.simulation.traffic.all_reduce, 2 * 2.0 / 3 * sums, 1) << feedback;
  }
}

TEST(PlannedStates, OfGroups) {
  for (const auto& [ranks, mesh] : {std::pair(4, "{data: 2, shard: 2}"), std::pair(6, "{data: 2, shard: 3}")})
    expect_planned({"sharding.strategy=hybrid", cat("sharding.mesh=", mesh), "sharding.wrap=10k", "train.batch.micro=5"}, ranks);
}

TEST(PlannedStates, WithAccumulationAveragesAndFrozenParameters) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    const std::vector<std::string> common{cat("sharding.strategy=", strategy), "sharding.bucket=16KiB", "sharding.wrap=10k"};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> overrides = common;
      overrides.push_back(more);
      return overrides;
    };
    expect_planned(with("train.batch.micro=5"), 3);
    expect_planned(with("train.ema={decay: 0.9}"), 3);
    expect_planned(with("train.freeze=[{match: \"*wte*\"}]"), 3);
  }
}

}  // namespace
}  // namespace galley
