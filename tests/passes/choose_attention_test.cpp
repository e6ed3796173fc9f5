// The choice of an algorithm of attention: its reasons, what is left in the graph, and equal results.

#include "libcore/passes/choose_attention.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/ops/attention.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/differentiate.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// Attention of packed heads with the scalar output "loss".
void build(Graph& graph, AttentionAlgorithm algorithm, const Shape& shape = {1, 5, 6, 4}, int64_t block_rows = 0) {
  AttentionAttrs attrs;
  attrs.causal = true;
  attrs.algorithm = algorithm;
  attrs.block_rows = block_rows;
  graph.set_path("attn");
  const Value x = graph.add_input("x", f32(shape), ValueRole::kInput);
  const Attention a = attention({.q = x}, attrs);
  graph.add_output("o", a.o);
  graph.add_output("loss", sum(square(a.o)));
}

int attentions(const Graph& graph) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return dynamic_cast<const AttentionAttrs*>(node.attributes.get()) != nullptr;
  }));
}

/// The loss and its gradient after both stages.
std::map<std::string, RefArray> trained(AttentionAlgorithm algorithm, const Target& target, const Shape& shape, int left,
                                        int64_t block_rows = 0) {
  Graph graph;
  build(graph, algorithm, shape, block_rows);
  choose_attention(graph, target, AttentionStage::kForward);
  const std::vector<ValueId> wanted{graph.find_input("x")};
  const auto gradients = differentiate(graph, graph.find_output("loss"), wanted);
  graph.add_output("dx", graph.at(gradients.begin()->second));
  choose_attention(graph, target, AttentionStage::kCompile);
  verify(graph);
  EXPECT_EQ(attentions(graph), left);
  return results(graph, feeds_for(graph));
}

TEST(ChooseAttention, SaysWhy) {
  const auto line = [](AttentionAlgorithm algorithm, const Target& target, const Shape& shape = {1, 5, 6, 4}) {
    Graph graph;
    build(graph, algorithm, shape);
    return choose_attention(graph, target, AttentionStage::kForward).done.at(0);
  };
  using enum AttentionAlgorithm;
  EXPECT_EQ(line(kAuto, kAnyKernel), "attn: attention: flash, the back end has a kernel that does not store the 200 B of scores");
  EXPECT_EQ(line(kAuto, kNoKernel), "attn: attention: math, the back end has no kernel for it; stores 200 B of scores");
  EXPECT_EQ(line(kAuto, kNoKernel, {1, 4096, 6, 4}),
            "attn: attention: memory_efficient, the back end has no kernel for it, and 128 MiB of scores are too many to store");
  EXPECT_EQ(line(kMath, kAnyKernel), "attn: attention: math, as requested");
  EXPECT_THROW(line(kFlash, kNoKernel), Error);
}

// The recipe's key decides where the graph does not.
TEST(ChooseAttention, TheTargetDecidesForAuto) {
  using enum AttentionAlgorithm;
  FakeTarget target;
  for (const AttentionAlgorithm requested : {kFlash, kMemoryEfficient, kMath}) {
    target.algorithm = requested;
    Graph graph;
    build(graph, kAuto);
    const PassReport report = choose_attention(graph, target, AttentionStage::kForward);
    const std::string choice = cat(kAttentionAlgorithmNames[static_cast<size_t>(requested)], ", as requested");
    EXPECT_EQ(report.done.at(0), "attn: attention: " + choice);
    EXPECT_EQ(report.attention, (std::map<std::string, int>{{choice, 1}}));
    EXPECT_EQ(attentions(graph), requested == kMath ? 0 : 1);
  }
  Graph graph;
  build(graph, kFlash);
  EXPECT_EQ(choose_attention(graph, target, AttentionStage::kForward).done.at(0), "attn: attention: flash, as requested");
}

TEST(ChooseAttention, RefusalsNameTheKey) {
  FakeTarget target([](const Graph&, const Node&) { return false; });
  target.algorithm = AttentionAlgorithm::kFlash;
  Graph graph;
  build(graph, AttentionAlgorithm::kAuto);
  try {
    choose_attention(graph, target, AttentionStage::kForward);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_EQ(error.key(), "attention");
    EXPECT_NE(error.message().find("at attn: the algorithm is flash, but the back end has no kernel"), std::string::npos)
        << error.message();
  }
}

TEST(ChooseAttention, EveryAlgorithmTrainsTheSame) {
  const Shape shape{2, 5, 6, 4};
  const auto flash = trained(AttentionAlgorithm::kFlash, kAnyKernel, shape, 2);
  expect_same(trained(AttentionAlgorithm::kMath, kAnyKernel, shape, 0), flash);
  expect_same(trained(AttentionAlgorithm::kMemoryEfficient, kAnyKernel, shape, 0), flash);
  expect_same(trained(AttentionAlgorithm::kAuto, kNoKernel, shape, 0), flash);
}

TEST(ChooseAttention, BlocksOfRowsGiveTheSame) {
  const Shape shape{2, 7, 6, 4};
  const auto flash = trained(AttentionAlgorithm::kFlash, kAnyKernel, shape, 2);
  for (const int64_t rows : {1, 3, 7, 8}) expect_same(trained(AttentionAlgorithm::kMemoryEfficient, kAnyKernel, shape, 0, rows), flash);
}

}  // namespace
}  // namespace galley::test
