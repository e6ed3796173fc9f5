// shard: with its collectives removed the graph is that of one rank; starts stand where the gradients are final, waits after the backward
// pass.

#include "libcore/passes/shard.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/gather_units.h"

namespace galley {
namespace {

TensorType matrix(int64_t rows, int64_t columns) {
  TensorType type;
  type.shape = Shape{rows, columns};
  return type;
}

struct Net {
  Graph graph;
  std::vector<std::string> names;
  std::vector<Value> gradients;
};

/// A chain of products with its gradients.
Net net(int layers, int64_t width, bool weigh) {
  Net net;
  Value x = net.graph.add_input("x", matrix(4, width), ValueRole::kInput);
  std::vector<ValueId> weights;
  for (int i = 0; i < layers; ++i) {
    net.names.push_back(cat("w", i));
    const Value w = net.graph.add_input(net.names.back(), matrix(width, width), ValueRole::kParameter);
    weights.push_back(w.id());
    x = matmul(x, w);
  }
  net.graph.add_output("loss", mean(x));
  if (weigh) weigh_losses(net.graph);
  net.graph.set_phase(Phase::kBackward);
  const auto gradients = differentiate(net.graph, net.graph.find_output("loss"), weights);
  for (const ValueId id : weights) net.gradients.push_back(net.graph.at(gradients.at(id)));
  return net;
}

/// Replaces the gradients of a net by their sums.
std::vector<GradientBucket> reduce_gradients(Net& net, int64_t bucket_bytes) {
  std::vector<UpdatePiece> pieces;
  for (size_t i = 0; i < net.names.size(); ++i) {
    const Value parameter = net.graph.at(net.graph.find_input(net.names[i]));
    pieces.push_back({.name = net.names[i], .parameter = parameter, .gradient = net.gradients[i]});
  }
  const auto updates = replicated_updates({.bytes = bucket_bytes});
  pieces = updates->reduce(net.graph, pieces);
  for (size_t i = 0; i < pieces.size(); ++i) net.gradients[i] = pieces[i].gradient;
  return updates->buckets();
}

/// Positions of the nodes of an operator.
std::vector<size_t> places(const Graph& graph, const OpDef& op) {
  std::vector<size_t> found;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (graph.nodes()[n].op == &op) found.push_back(n);
  }
  return found;
}

TEST(Shard, StartsDirectlyAfterTheLastGradientOfABucketAndWaitsAtTheEnd) {
  Net sharded = net(6, 32, true);  // 4 KiB of gradients for each layer
  const std::vector<GradientBucket> buckets = reduce_gradients(sharded, 8 << 10);
  ASSERT_EQ(buckets.size(), 3u);
  // The gradients of the last layers are final first.
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::string>{"w5", "w4"}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<std::string>{"w3", "w2"}));
  EXPECT_EQ(buckets[2].parameters, (std::vector<std::string>{"w1", "w0"}));
  for (const GradientBucket& bucket : buckets) EXPECT_EQ(bucket.layout.elements, 2 * 32 * 32);
  verify(sharded.graph);
  const std::vector<size_t> starts = places(sharded.graph, all_reduce_start_op()), waits = places(sharded.graph, all_reduce_wait_op());
  ASSERT_EQ(starts.size(), 3u);
  ASSERT_EQ(waits.size(), 3u);
  // The products of the four other layers follow: of each, the gradient of its weight, and of all but the first that of its input.
  const auto products = std::count_if(sharded.graph.nodes().begin() + static_cast<std::ptrdiff_t>(starts[0]), sharded.graph.nodes().end(),
                                      [](const Node& node) { return node.op->work == WorkClass::kProduct; });
  EXPECT_GE(products, 7);
  EXPECT_LT(starts[0], starts[1]);
  EXPECT_LT(starts[2], waits[0]);
  for (const size_t n : waits) EXPECT_EQ(sharded.graph.nodes()[n].phase, Phase::kBackward);
  // Between the first start and the first wait stand the products of the other layers.
  EXPECT_GT(waits[0] - starts[0], 8u);
}

TEST(Shard, GradientsKeepTheirTypes) {
  Net sharded = net(3, 8, true);
  const Net plain = net(3, 8, true);
  reduce_gradients(sharded, 1 << 20);
  for (size_t i = 0; i < plain.gradients.size(); ++i) EXPECT_EQ(sharded.gradients[i].type(), plain.gradients[i].type());
  EXPECT_EQ(places(sharded.graph, all_reduce_start_op()).size(), 1u);
}

TEST(Shard, LossesAreWeighedAndSummed) {
  Net sharded = net(2, 8, true);
  EXPECT_NE(sharded.graph.find_input(kRankWeight), kNoValue);
  const ValueId own = sharded.graph.find_output("loss");
  reduce_losses(sharded.graph);
  verify(sharded.graph);
  const ValueId sum = sharded.graph.find_output("loss");
  EXPECT_NE(sum, own);
  EXPECT_EQ(sharded.graph.type(sum).shape.rank(), 0);
  EXPECT_EQ(places(sharded.graph, all_reduce_start_op()).size(), 1u);
}

TEST(Shard, WithoutItsCollectivesItIsTheGraphOfOneRank) {
  Net sharded = net(4, 8, true);
  Net again = net(4, 8, true);
  const ValueId loss = again.graph.find_output("loss");
  reduce_gradients(again, 1);  // each gradient alone: nothing is copied
  const std::vector<Value>& sums = again.gradients;
  for (size_t i = 0; i < sums.size(); ++i) again.graph.add_output(cat("g", i), sums[i]);
  EXPECT_EQ(again.graph.find_output("loss"), loss);
  remove_collectives(again.graph);
  verify(again.graph);
  EXPECT_TRUE(places(again.graph, all_reduce_start_op()).empty() && places(again.graph, all_reduce_wait_op()).empty());
  // What is left besides the nodes of one rank are views.
  const auto real = [](const Graph& graph) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return !is_view(graph, node); });
  };
  EXPECT_EQ(real(again.graph), real(sharded.graph));
}

TEST(Shard, RanksUpdateTheirRangesOfBucketsOfOneGroup) {
  Net net = galley::net(4, 10, true);  // 100 elements for each layer, 112 in a bucket
  std::vector<UpdatePiece> pieces;
  for (size_t i = 0; i < net.names.size(); ++i) {
    const Value parameter = net.graph.at(net.graph.find_input(net.names[i]));
    pieces.push_back({.name = net.names[i], .parameter = parameter, .gradient = net.gradients[i], .group = i == 2 ? 1 : 0});
  }
  const auto updates = sharded_updates({}, 1, 3);
  const std::vector<UpdatePiece> own = updates->reduce(net.graph, pieces);
  ASSERT_EQ(updates->buckets().size(), 2u);
  EXPECT_EQ(updates->buckets()[0].parameters, (std::vector<std::string>{"w3", "w1", "w0"}));
  EXPECT_EQ(updates->buckets()[1].parameters, (std::vector<std::string>{"w2"}));
  EXPECT_EQ(updates->buckets()[0].layout.offsets, (std::vector<int64_t>{0, 112, 224}));
  EXPECT_EQ(updates->buckets()[0].layout.elements, 324);
  ASSERT_EQ(own.size(), 2u);
  // 324 elements on 3 ranks: 112 each; 100: 48 each.
  for (const size_t b : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(own[b].parameter.shape(), (Shape{b == 0 ? 112 : 48}));
    EXPECT_EQ(own[b].gradient.shape(), own[b].parameter.shape());
    EXPECT_EQ(own[b].group, static_cast<int64_t>(b));
    EXPECT_FALSE(own[b].in_parameter);
  }
  verify(net.graph);
}

/// The gathers of a graph: for each start its place and that of its wait.
std::vector<std::pair<size_t, size_t>> gathers(const Graph& graph) {
  std::vector<std::pair<size_t, size_t>> found;
  for (const size_t start : places(graph, all_gather_start_op())) {
    for (const size_t wait : places(graph, all_gather_wait_op())) {
      if (graph.nodes()[wait].inputs[0] == graph.nodes()[start].outputs[0]) found.emplace_back(start, wait);
    }
  }
  return found;
}

TEST(Shard, UnitsAreGatheredAheadWithinTheLimitAndFreed) {
  const Net plain = net(4, 16, true);
  std::vector<GradientBucket> units;
  for (const std::string& name : plain.names) {
    GradientBucket& unit = units.emplace_back();
    unit.state = "shard." + name;
    unit.parameters = {name};
    unit.shapes = {Shape{16, 16}};
    unit.layout = divide_into_buckets(std::vector<BucketMember>{{.elements = 256}}, 1, 1).front();
  }
  const auto with = [&](const GatherOptions& options) {
    Graph graph = plain.graph;
    gather_units(graph, units, options);
    verify(graph);
    for (const std::string& name : plain.names) {
      EXPECT_EQ(graph.find_input(name), kNoValue);
      EXPECT_EQ(graph.type(graph.find_input("shard." + name)).shape, Shape{128});
    }
    return gathers(graph);
  };
  // Four in the forward pass; the gradient of x is not needed, so that the backward pass reads three.
  const auto ahead = with({.rank = 1, .ranks = 2});
  ASSERT_EQ(ahead.size(), 7u);
  for (size_t g = 1; g < ahead.size(); ++g) {
    EXPECT_EQ(ahead[g].first, ahead[g - 1].second + 2) << "starts after the wait and the view of the unit before it";
    EXPECT_GT(ahead[g].second, ahead[g].first + 1);
  }
  const auto alone = with({.rank = 1, .ranks = 2, .limit = 1500});  // two units of 1024 bytes do not fit
  ASSERT_EQ(alone.size(), 7u);
  for (const auto& [start, wait] : alone) EXPECT_EQ(wait, start + 1);
  EXPECT_EQ(with({.rank = 0, .ranks = 2, .reshard_after_forward = false}).size(), 4u);
}

}  // namespace
}  // namespace galley
