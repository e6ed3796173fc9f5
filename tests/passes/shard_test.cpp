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
  const std::vector<GradientBucket> buckets = reduce_gradients(sharded.graph, sharded.gradients, sharded.names, 8 << 10);
  ASSERT_EQ(buckets.size(), 3u);
  // The gradients of the last layers are final first.
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::string>{"w5", "w4"}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<std::string>{"w3", "w2"}));
  EXPECT_EQ(buckets[2].parameters, (std::vector<std::string>{"w1", "w0"}));
  for (const GradientBucket& bucket : buckets) EXPECT_EQ(bucket.elements, 2 * 32 * 32);
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
  reduce_gradients(sharded.graph, sharded.gradients, sharded.names, 1 << 20);
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
  std::vector<Value> sums = again.gradients;
  reduce_gradients(again.graph, sums, again.names, 1);  // each gradient alone: nothing is copied
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

}  // namespace
}  // namespace galley
