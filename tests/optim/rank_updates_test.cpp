// Updates that ranks divide: with the conversions between what a rank holds and what all hold removed, the graph of each rank of every
// strategy is the graph of one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/optim/optimizer.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/gather_units.h"
#include "libcore/passes/shard.h"
#include "tests/optim/run.h"

namespace galley {
namespace {

constexpr int64_t kWidth = 16;  // 256 elements in a parameter: 4 ranks have 64 each, and nothing is padded
const std::vector<std::string> kNames{"w0", "w1", "w2"};

/// What computes a value, as a term: names of inputs, and operators with their attributes. Conversions are left out: collectives, views,
/// a rank's range of an array, and the copy of updated ranges into parameters. So are the sizes of arrays.
class Terms {
 public:
  explicit Terms(const Graph& graph) : graph_(graph), terms_(graph.value_count()) {
    for (const ValueId id : graph.inputs()) term(id) = name_of(graph.value(id).name);
    for (const Node& node : graph.nodes()) read(node);
    for (const auto& [name, id] : graph.outputs()) results_.insert(name + " = " + term(id));
  }
  /// What the graph gives: its outputs, and the new values of its states.
  const std::set<std::string>& results() const { return results_; }

 private:
  /// The state of a bucket is that of its only parameter.
  static std::string name_of(const std::string& name) {
    for (const char* prefix : {"shard.bucket", "shard."}) {
      if (!name.starts_with(prefix)) continue;
      std::string rest = name.substr(std::string_view(prefix).size());
      // Buckets are numbered in the order of gradients: the last parameter is the first.
      if (std::string_view(prefix) == "shard.bucket") rest = kNames[kNames.size() - static_cast<size_t>(rest[0] - '0')] + rest.substr(1);
      return rest;
    }
    return name;
  }
  std::string& term(ValueId id) { return terms_[static_cast<size_t>(id)]; }

  bool converts(const Node& node) const {
    const std::set<const OpDef*> collectives{&all_reduce_start_op(), &all_reduce_wait_op(),      &all_gather_start_op(),
                                             &all_gather_wait_op(),  &reduce_scatter_start_op(), &reduce_scatter_wait_op()};
    return collectives.count(node.op) > 0 || is_view(graph_, node) || node.op == &slice_op();
  }

  void read(const Node& node) {
    if (converts(node)) {
      term(node.outputs[0]) = term(node.inputs[0]);
      return;
    }
    if (node.op == &assign_op()) {  // the parameter is what the update of its range gave
      term(node.outputs[0]) = term(node.inputs[1]);
      return;
    }
    std::string text = cat(node.op->name, "{", print_attributes(*node.op, node.attributes.get()), "}(");
    std::vector<std::string> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(id == kNoValue ? "-" : term(id));
    if (node.op == &sum_squares_op()) std::sort(inputs.begin(), inputs.end());  // buckets are in the order of gradients
    for (const std::string& input : inputs) text += input + ",";
    text += ")";
    for (size_t o = 0; o < node.outputs.size(); ++o) term(node.outputs[o]) = cat(text, ".", o);
    for (const InPlace& update : node.op->updates) {
      const ValueId state = node.input(static_cast<size_t>(update.input));
      if (state != kNoValue) results_.insert(term(state) + " <- " + term(node.outputs[static_cast<size_t>(update.output)]));
    }
  }

  const Graph& graph_;
  std::vector<std::string> terms_;
  std::set<std::string> results_;
};

/// The step of a chain of products, with momentum, clipping, averages and, in two passes, accumulation; `ranks` may replace gradients.
Graph step(RankUpdates* ranks, bool accumulates, const ShardGroups& groups = {}, bool reduces_losses = true) {
  Graph graph;
  const TensorType type = type_of(DType::kF32, {kWidth, kWidth});
  Value x = graph.add_input("x", type, ValueRole::kInput);
  std::vector<ValueId> weights;
  for (const std::string& name : kNames) {
    weights.push_back(graph.add_input(name, type, ValueRole::kParameter).id());
    x = gelu(matmul(x, graph.at(weights.back())));
  }
  graph.add_output("loss", mean(x));
  weigh_losses(graph);
  place_samples(graph, groups);
  graph.set_phase(Phase::kBackward);
  const auto found = differentiate(graph, graph.find_output("loss"), weights);
  Gradients gradients;
  for (const ValueId id : weights) gradients[id] = found.at(id);
  if (ranks != nullptr && reduces_losses) reduce_losses(graph);
  AdamW optimizer;
  optimizer.lr = 0.1;
  UpdateOptions options;
  options.groups = resolve_groups(optimizer);
  options.clip = ClipMode::kNorm;
  options.accumulation = accumulates ? 2 : 1;
  options.ema = true;
  options.ranks = ranks;
  add_updates(graph, gradients, options);
  return graph;
}

std::vector<GradientBucket> units() {
  std::vector<GradientBucket> units;
  for (const std::string& name : kNames) {
    GradientBucket& unit = units.emplace_back();
    unit.name = "grads." + name;
    unit.state = "shard." + name;
    unit.gather_name = "params." + name;
    unit.parameters = {name};
    unit.shapes = {Shape{kWidth, kWidth}};
    unit.layout = divide_into_buckets(std::vector<BucketMember>{{.elements = kWidth * kWidth}}, 1, 1).front();
  }
  return units;
}

class RankUpdatesOf : public testing::TestWithParam<std::string> {};

TEST_P(RankUpdatesOf, WithoutTheirConversionsAreTheGraphOfOneRank) {
  const std::string& strategy = GetParam();
  const BucketChoice alone{.bytes = 1};  // each gradient has a bucket of its own: nothing is copied
  for (const bool accumulates : {false, true}) {
    const Graph one = step(nullptr, accumulates);
    const std::set<std::string> expected = Terms(one).results();
    EXPECT_EQ(expected.size(), 2 + kNames.size() * (accumulates ? 5 : 4)) << "loss, norm; weight, moments, average; sums";
    for (int rank = 0; rank < 4; ++rank) {
      ShardGroups groups{.rank = rank, .ranks = 4};
      if (strategy == "hybrid") groups = {.rank = rank % 2, .ranks = 2, .copies = 2};
      if (strategy == "ddp") groups = {.copies = 4};
      const bool gathers = strategy == "fsdp" || strategy == "hybrid";
      const std::unique_ptr<RankUpdates> updates = gathers             ? gathered_updates(units(), groups)
                                                   : strategy == "ddp" ? replicated_updates(alone)
                                                                       : sharded_updates(alone, rank, 4);
      Graph graph = step(updates.get(), accumulates, groups);
      if (gathers) gather_units(graph, units(), {.rank = groups.rank, .ranks = groups.ranks});
      verify(graph);
      check_results(graph);
      EXPECT_GT(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                              [](const Node& node) { return node.op->name.find("_start") != std::string_view::npos; }),
                3);
      const std::set<std::string> results = Terms(graph).results();
      const auto [own, one_rank] = std::mismatch(results.begin(), results.end(), expected.begin(), expected.end());
      EXPECT_TRUE(results == expected) << "rank " << rank << ": " << (own == results.end() ? "" : own->substr(0, 200))
                                       << "; one rank: " << (one_rank == expected.end() ? "" : one_rank->substr(0, 200));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, RankUpdatesOf, testing::Values("ddp", "zero", "fsdp", "hybrid"),
                         [](const auto& strategy) { return strategy.param; });

/// What the checks say of the graph.
std::string refusal(const Graph& graph) {
  try {
    verify(graph);
    check_results(graph);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Placements, ValuesOfOneRankDoNotUpdateWhatAllHold) {
  EXPECT_EQ(refusal(step(nullptr, false)), "");
  const std::string alone = refusal(step(nullptr, false, {.copies = 4}));
  EXPECT_NE(alone.find("updates w0, which is replicated along the axis data, by values that are own along the axis data"),
            std::string::npos)
      << alone;
  // Sums over the ranks that divide a unit, but not over those that hold the same ranges.
  const auto half = gathered_updates(units(), {.rank = 0, .ranks = 2});
  const std::string missing = refusal(step(half.get(), false, {.rank = 0, .ranks = 2, .copies = 2}));
  EXPECT_NE(missing.find("updates shard.w0, which is replicated along the axis data"), std::string::npos) << missing;
  // Updated ranges that are not gathered are not the parameter.
  Graph graph = step(sharded_updates({.bytes = 1}, 0, 4).get(), false, {.rank = 0, .ranks = 4});
  EXPECT_EQ(refusal(graph), "");
  for (const Node& node : graph.nodes()) {
    if (node.op == &all_gather_wait_op()) graph.replace_uses(node.outputs[0], node.inputs[0]);
  }
  infer_placements(graph);
  const std::string ungathered = refusal(graph);
  EXPECT_NE(ungathered.find("replicated along the axis shard, by values that are range along the axis shard"), std::string::npos)
      << ungathered;
}

TEST(Placements, ResultsAreEqualOnAllRanks) {
  const auto updates = replicated_updates({});
  const std::string loss = refusal(step(updates.get(), false, {.copies = 4}, false));
  EXPECT_NE(loss.find("the output loss is not equal on all ranks: data=own"), std::string::npos) << loss;
}

/// The copy of a rank's range has the name and the size of other ranks' copies, but not their values.
TEST(Placements, AreKeptWhereAPassCutsARange) {
  const Graph graph = step(sharded_updates({.bytes = 1}, 0, 4).get(), true, {.rank = 0, .ranks = 4});
  const auto cut = std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return !node.cut.replicated(); });
  ASSERT_NE(cut, graph.nodes().end());
  EXPECT_EQ(cut->op, &slice_op());
  EXPECT_EQ(graph.type(cut->inputs[0]).placement, Placement());
  EXPECT_EQ(graph.type(cut->outputs[0]).placement.str(), "shard=range");
  EXPECT_EQ(graph.type(graph.find_input("w0.grad")).placement.str(), "shard=own");
  EXPECT_EQ(graph.type(graph.find_input("shard.bucket1.exp_avg")).placement.str(), "shard=range");
  const std::string text = print(graph);
  EXPECT_NE(text.find("state \"shard.bucket1.exp_avg\" : f32 [64] held(shard=range)\n"), std::string::npos) << text;
  const Graph again = parse_graph(text);
  EXPECT_EQ(print(again), text);
  Graph copy;
  std::vector<ValueId> map(graph.value_count(), kNoValue);
  const auto at = [&](ValueId id) { return id == kNoValue ? id : map[static_cast<size_t>(id)]; };
  for (const ValueId id : graph.inputs())
    map[static_cast<size_t>(id)] = copy.add_input(graph.value(id).name, graph.type(id), graph.value(id).role).id();
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(at(id));
    const std::vector<Value> made = copy.add_node_like(node, inputs);
    for (size_t o = 0; o < made.size(); ++o) map[static_cast<size_t>(node.outputs[o])] = made[o].id();
  }
  for (const auto& [name, id] : graph.outputs()) copy.add_output(name, at(id));
  EXPECT_EQ(print(copy), text);
}

}  // namespace
}  // namespace galley
