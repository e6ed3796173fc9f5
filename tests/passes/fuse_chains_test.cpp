// fuse_chains: results are equal, and values with other readers are kept. tests/runtime/chains_test.cpp compares kernels bit for bit.

#include "libcore/passes/fuse_chains.h"

#include <gtest/gtest.h>

#include "libcore/ops/elementwise_chain.h"
#include "libcore/ops/reduce.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

Value image(Graph& graph, const std::string& name, const Shape& shape) { return graph.add_input(name, f32(shape), ValueRole::kInput); }

/// The operators after the pass, in order. A chain applies the same functions to the same numbers, so outputs are bit-identical.
std::vector<std::string> fused(Graph& graph, const Target& target = kAnyKernel) {
  const auto feeds = feeds_for(graph);
  const auto before = results(graph, feeds);
  fuse_chains(graph, target);
  verify(graph);
  for (const auto& [name, array] : results(graph, feeds)) {
    EXPECT_EQ(array.shape, before.at(name).shape) << name;
    EXPECT_EQ(array.v, before.at(name).v) << name;
  }
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.emplace_back(node.op->name);
  return names;
}

using Names = std::vector<std::string>;
const ElementwiseChainAttrs& last_chain(const Graph& graph) { return graph.nodes().back().attrs<ElementwiseChainAttrs>(); }
Names steps_of(const ElementwiseChainAttrs& chain) {
  Names texts;
  for (const ChainStep& step : chain.steps) {
    const std::string attributes = print_attributes(*step.op, step.attributes.get());
    texts.push_back(cat(step.op->name, attributes.empty() ? "" : " ", attributes));
  }
  return texts;
}

TEST(FuseChains, JoinsWhatNothingElseReads) {
  Graph graph;
  const Value x = image(graph, "x", {2, 3, 4, 5}), y = image(graph, "y", {2, 3, 4, 5}), gate = image(graph, "gate", {2, 3, 1, 1});
  graph.add_output("z", relu(add(mul(silu(x), sigmoid(gate)), clamp(y, -0.25, 0.25))));
  EXPECT_EQ(fused(graph), (Names{"sigmoid", "elementwise_chain"}));  // the gate's sigmoid is of another shape
  EXPECT_EQ(steps_of(last_chain(graph)), (Names{"clamp min=-0.25 max=0.25", "silu", "mul", "add", "relu"}));
  EXPECT_EQ(graph.nodes().back().inputs.size(), 3u);
  EXPECT_EQ(print(parse_graph(print(graph))), print(graph));
}

TEST(FuseChains, ComputesAValueThatTheChainReadsTwiceOnce) {
  Graph graph;
  const Value v = affine(image(graph, "x", {40}), 2, 1);
  graph.add_output("z", mul(v, tanh(v)));
  EXPECT_EQ(fused(graph), (Names{"elementwise_chain"}));
  EXPECT_EQ(steps_of(last_chain(graph)), (Names{"affine scale=2 shift=1", "tanh", "mul"}));
}

TEST(FuseChains, LeavesValuesThatOthersRead) {
  Graph graph;
  const Value x = image(graph, "x", {40}), v = silu(x), w = affine(v, 2);
  graph.add_output("v", v);
  graph.add_output("z", add(w, exp(w)));
  const Value tangents = sum(neg(tanh(x))), squares = sum(square(x));
  graph.add_output("sum", add(squares, tangents));
  EXPECT_EQ(fused(graph), (Names{"silu", "elementwise_chain", "elementwise_chain", "sum", "square", "sum", "add"}));
}

TEST(FuseChains, SharesNoStepBetweenTwoChains) {
  Graph graph;
  const Value v = square(image(graph, "x", {40}));
  graph.add_output("a", neg(affine(v, 2)));
  graph.add_output("b", neg(affine(v, 3)));
  EXPECT_EQ(fused(graph), (Names{"square", "elementwise_chain", "elementwise_chain"}));
}

/// The module of a chain is the nearest module that contains all of its functions.
TEST(FuseChains, StandsInTheModuleThatContainsItsFunctions) {
  const auto path_of = [](const Names& paths) {
    Graph graph;
    Value v = image(graph, "x", {40});
    for (const std::string& path : paths) {
      graph.set_path(path);
      v = tanh(v);
    }
    graph.add_output("z", v);
    EXPECT_EQ(fused(graph), (Names{"elementwise_chain"}));
    return graph.nodes().back().path;
  };
  EXPECT_EQ(path_of({"layer1.0.act", "layer1.0.act"}), "layer1.0.act");
  EXPECT_EQ(path_of({"layer1.0.act", "layer1.0.scale", "layer1.0"}), "layer1.0");
  EXPECT_EQ(path_of({"layer1.0.act", "layer1.10.act"}), "layer1");
  EXPECT_EQ(path_of({"layer1", "layer10"}), "");
  EXPECT_EQ(path_of({"", "head"}), "");
}

TEST(FuseChains, KeepsPhasesApart) {
  Graph graph;
  const Value sum = add(image(graph, "x", {40}), image(graph, "y", {40}));
  graph.set_phase(Phase::kBackward);
  graph.add_output("z", neg(sum));
  EXPECT_EQ(fused(graph), (Names{"add", "neg"}));
}

TEST(FuseChains, MakesSeveralChainsWhereTheTargetTakesNoLonger) {
  const FakeTarget eight{[](const Graph&, const Node& node) { return node.attrs<ElementwiseChainAttrs>().steps.size() <= 8; }};
  Graph graph;
  Value v = image(graph, "x", {40});
  for (int i = 0; i < 20; ++i) v = affine(v, 0.5, 1);
  graph.add_output("z", v);
  EXPECT_EQ(fused(graph, eight), (Names{"elementwise_chain", "elementwise_chain", "elementwise_chain"}));
}

TEST(FuseChains, LeavesWhatTheTargetHasNoKernelFor) {
  Graph graph;
  graph.add_output("z", neg(tanh(image(graph, "x", {40}))));
  EXPECT_EQ(fused(graph, kNoKernel), (Names{"tanh", "neg"}));
}

TEST(FuseChains, ReadsAParameterBeforeItIsOverwritten) {
  Graph graph;
  const Value w = graph.add_input("w", f32({40}), ValueRole::kParameter), x = image(graph, "x", {40});
  const Value early = mul(x, w);
  ema_update(w, x, image(graph, "decay", {}));
  graph.add_output("z", neg(early));
  EXPECT_EQ(fused(graph), (Names{"mul", "ema_update", "neg"}));
}

TEST(FuseChains, KeepsNoTwoArraysForOneResult) {
  const auto build = [](Graph& graph, bool between) {
    const Value x = image(graph, "x", {6, 6}), y = neg(matmul(x, x)), z = matmul(y, x), sum = add(tanh(y), matmul(z, x));
    const Value other = between ? matmul(z, z) : z;
    graph.add_output("r", add(sum, other));
  };
  Graph near, far;
  build(near, false);
  build(far, true);
  // tanh is moved past the product: it reads one array and writes one. The sum of two arrays remains after their last readers.
  EXPECT_EQ(fused(near), (Names{"matmul", "neg", "matmul", "matmul", "elementwise_chain"}));
  EXPECT_EQ(fused(far), (Names{"matmul", "neg", "matmul", "matmul", "elementwise_chain", "matmul", "add"}));
}

}  // namespace
}  // namespace galley::test
