// expand: which nodes it replaces and keeps, the modules of the new nodes, and for which nodes the compile pipeline calls it.
// tests/ops/definitions_test.cpp compares the results and gradients of all definitions with their operators.

#include "libcore/passes/expand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/pipelines.h"
#include "tests/support/target.h"

namespace galley {
namespace {

TensorType typed(DType dtype, const Shape& shape, std::vector<std::string> names = {}) { return {dtype, shape, {}, std::move(names)}; }

RefArray numbers(const Shape& shape, double from = -1) {
  RefArray array{shape, {}};
  for (int64_t i = 0; i < shape.elements(); ++i) array.v.push_back(from + std::fmod(0.37 * static_cast<double>(i), 2.0));
  return array;
}

int count_expanded(const Graph& graph, std::string_view op) {
  return static_cast<int>(std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.is(op); }));
}

bool none(const Node&) { return false; }

TEST(Expand, LeavesWhatIsKeptAndPrimitivesAlone) {
  Graph graph;
  const Value x = graph.add_input("x", typed(DType::kF32, {2, 3, 5, 5}), ValueRole::kInput);
  const Value weight = graph.add_input("weight", typed(DType::kF32, {4, 3, 3, 3}), ValueRole::kParameter),
              bias = graph.add_input("bias", typed(DType::kF32, {4}), ValueRole::kParameter);
  Conv2dAttrs fused;
  fused.activation = Activation::kHardswish;
  graph.add_output("y",
                   softmax(softmax(conv2d(conv2d(x, weight, bias, fused),
                                          graph.add_input("second", typed(DType::kF32, {4, 4, 1, 1}), ValueRole::kParameter), {}, {}))));
  std::map<std::string, RefArray> feeds{
      {"x", numbers({2, 3, 5, 5})}, {"weight", numbers({4, 3, 3, 3})}, {"bias", numbers({4})}, {"second", numbers({4, 4, 1, 1})}};
  const RefArray want = interpret(graph, feeds).at(graph.find_output("y"));

  Graph some = graph;
  int softmaxes = 0;
  const PassReport report = expand(some, [&](const Node& node) { return node.is("softmax") && softmaxes++ == 0; });
  verify(some);
  EXPECT_EQ(count_expanded(some, "conv2d"), 2);  // both plain now
  EXPECT_EQ(count_expanded(some, "hardswish"), 1);
  EXPECT_EQ(count_expanded(some, "softmax"), 1);
  EXPECT_EQ(count_expanded(some, "amax"), 1);
  EXPECT_EQ(report.done.size(), 2u);
  const RefArray got = interpret(some, feeds).at(some.find_output("y"));
  for (size_t i = 0; i < want.v.size(); ++i) EXPECT_NEAR(got.v[i], want.v[i], 1e-14);

  Graph all = graph;
  const PassReport nothing = expand(all, [](const Node&) { return true; });
  EXPECT_EQ(print(all), print(graph));
  EXPECT_TRUE(nothing.done.empty());
}

TEST(Expand, KeepsPathsPhasesAndNames) {
  Graph graph;
  graph.set_path("head.norm");
  graph.set_phase(Phase::kBackward);
  const Value x = graph.add_input("x", typed(DType::kF32, {2, 3, 8}, {"batch", "time", "features"}), ValueRole::kInput);
  const Value y = layer_norm(x, {}, {}).y;
  graph.add_output("norm", y);
  graph.set_path("tail");
  graph.add_output("y", relu(y));
  const TensorType type = graph.type(graph.find_output("y"));
  EXPECT_EQ(graph.type(graph.find_output("norm")), type);
  graph.set_path("elsewhere");
  graph.set_phase(Phase::kForward);
  expand(graph, none);
  verify(graph);
  EXPECT_EQ(count_expanded(graph, "layer_norm"), 0);
  for (const char* output : {"norm", "y"}) EXPECT_EQ(graph.type(graph.find_output(output)), type) << output;
  for (const Node& node : graph.nodes()) {
    EXPECT_EQ(node.path, node.is("relu") ? "tail" : "head.norm");
    EXPECT_EQ(node.phase, Phase::kBackward);
  }
  EXPECT_EQ(graph.path(), "elsewhere");
  EXPECT_EQ(graph.phase(), Phase::kForward);
}

/// Low precision concerns only memory: a definition computes in f32, or in the requested type, and outputs the types of the node.
TEST(Expand, ComputesInOneType) {
  for (const bool wide : {false, true}) {
    Graph graph;
    const Value x = graph.add_input("x", typed(DType::kBF16, {4, 3}), ValueRole::kInput),
                gamma = graph.add_input("gamma", typed(DType::kF32, {3}), ValueRole::kParameter);
    const BatchNorm norm = batch_norm(x, gamma, {});
    graph.add_output("y", norm.y);
    graph.add_output("mean", norm.mean);
    expand(graph, none, wide ? std::optional(DType::kF64) : std::nullopt);
    verify(graph);
    for (const Node& node : graph.nodes()) {
      EXPECT_TRUE(node.is("cast") || graph.type(node.outputs[0]).dtype == (wide ? DType::kF64 : DType::kF32)) << node.op->name;
    }
    EXPECT_EQ(graph.type(graph.find_output("y")).dtype, DType::kBF16);
    EXPECT_EQ(graph.type(graph.find_output("mean")).dtype, DType::kF32);
  }
}

/// States are assigned after every read of the old values, and later nodes read the new ones.
TEST(Expand, UpdatesStatesInPlace) {
  Graph graph;
  graph.set_phase(Phase::kUpdate);
  const auto state = [&](const std::string& name) { return graph.add_input(name, typed(DType::kF32, {3}), ValueRole::kState); };
  const Value param = graph.add_input("param", typed(DType::kF32, {3}), ValueRole::kParameter),
              grad = graph.add_input("grad", typed(DType::kF32, {3}), ValueRole::kInput);
  const Value lr = graph.add_input("lr", typed(DType::kF32, {}), ValueRole::kInput),
              step = graph.add_input("step", typed(DType::kI64, {}), ValueRole::kInput);
  const Value decay = graph.add_input("decay", typed(DType::kF32, {}), ValueRole::kInput);
  const std::vector<Value> updated = adam_update(param, grad, lr, step, state("mean"), state("square"), {}, {});
  graph.add_output("ema", ema_update(state("ema"), updated[0], decay));
  graph.add_output("param", updated[0]);
  const std::map<std::string, RefArray> feeds{{"param", numbers({3})},       {"grad", numbers({3}, 1)}, {"lr", {{}, {0.1}}},
                                              {"step", {{}, {2}}},           {"decay", {{}, {0.75}}},   {"mean", numbers({3}, 0.1)},
                                              {"square", numbers({3}, 0.3)}, {"ema", numbers({3}, 2)}};
  const auto want = interpret(graph, feeds);
  Graph expanded = graph;
  expand(expanded, none);
  verify(expanded);
  EXPECT_EQ(count_expanded(expanded, "assign"), 4);
  const auto got = interpret(expanded, feeds);
  for (const std::string name : {"ema", "param"}) {
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(got.at(expanded.find_output(name)).v[i], want.at(graph.find_output(name)).v[i], 1e-14) << name;
  }
}

/// Rejects batch norms whose input does not have this format; before the layout pass, which may choose any format, rejects all.
test::FakeTarget norms_only_in(MemoryFormat format) {
  test::FakeTarget target;
  target.refuse = [format](const Graph& graph, const Node& node, Stage stage) {
    const bool fits = stage == Stage::kAfterLayout && graph.type(node.inputs[0]).format == format;
    return node.is("batch_norm") && !fits ? "other formats" : "";
  };
  return target;
}

/// The graph after the compile pipeline, with its report.
std::pair<Graph, CompileReport> compiled(Graph graph, const Target& target, LayoutMode mode) {
  CompileReport report = compile_passes(graph, target, {.mode = mode});
  return {std::move(graph), std::move(report)};
}

/// Targets are queried with the formats of the layout pass, not those of the captured graph.
TEST(ExpandUnsupported, AsksInTheFormatsOfLayout) {
  Graph graph;
  const Value x = graph.add_input("x", typed(DType::kF32, {2, 3, 4, 4}), ValueRole::kInput);
  graph.set_path("norm");
  graph.add_output("y", batch_norm(x, {}, {}).y);
  const test::FakeTarget last = norms_only_in(MemoryFormat::channels_last()), contiguous = norms_only_in(MemoryFormat());
  for (const auto& [target, mode, expands] : {std::tuple(&last, LayoutMode::kChannelsLast, false),
                                              {&last, LayoutMode::kContiguous, true},
                                              {&contiguous, LayoutMode::kChannelsLast, true},
                                              {&contiguous, LayoutMode::kContiguous, false}}) {
    const auto [made, report] = compiled(graph, *target, mode);
    EXPECT_EQ(count_expanded(made, "batch_norm"), expands ? 0 : 1);
    ASSERT_EQ(report.expansion.done.size(), expands ? 1u : 0u);
    for (const std::string& line : report.expansion.done) EXPECT_EQ(line, "norm: batch_norm becomes 12 nodes (other formats)");
  }
}

/// The nodes of a definition are also expanded, and no others; primitive forms are kept, and compilation rejects them.
TEST(ExpandUnsupported, GoesOnUntilTheTargetTakesWhatIsThere) {
  Graph graph;
  const Value x = graph.add_input("x", typed(DType::kF32, {2, 3, 5, 5}), ValueRole::kInput);
  const Value weight = graph.add_input("weight", typed(DType::kF32, {4, 3, 3, 3}), ValueRole::kParameter);
  Conv2dAttrs fused;
  fused.activation = Activation::kHardswish;
  const Value y = softmax(conv2d(x, weight, {}, fused)),
              goal = graph.add_input("goal", typed(DType::kF32, {2, 4, 3, 3}), ValueRole::kInput);
  graph.add_output("loss", mse_loss(y, goal));
  test::FakeTarget target;
  target.refuse = [](const Graph&, const Node& node, Stage) {
    return node.is("conv2d") || node.is("mse_loss") || node.is("mean") ? "no" : "";
  };
  const std::map<std::string, RefArray> feeds{
      {"x", numbers({2, 3, 5, 5})}, {"weight", numbers({4, 3, 3, 3})}, {"goal", numbers({2, 4, 3, 3}, 0.2)}};
  const RefArray want = interpret(graph, feeds).at(graph.find_output("loss"));
  const PassReport report = expand_unsupported(graph, target, {});
  verify(graph);
  EXPECT_EQ(report.done, std::vector<std::string>{"conv2d becomes 2 nodes (no)"}) << "mse_loss has one element";
  EXPECT_EQ(count_expanded(graph, "conv2d"), 1);
  EXPECT_EQ(count_expanded(graph, "hardswish"), 1) << "the convolution's own form is a primitive";
  EXPECT_EQ(count_expanded(graph, "mse_loss") + count_expanded(graph, "mean"), 0)
      << "the loss is a mean, which is expanded in the second round";
  EXPECT_EQ(count_expanded(graph, "softmax"), 1) << "the target runs it";
  const RefArray got = interpret(graph, feeds).at(graph.find_output("loss"));
  EXPECT_NEAR(got.v[0], want.v[0], 1e-14);
}

TEST(Expand, RefusesMemoryFormats) {
  Graph graph;
  const Value x = graph.add_input("x", {DType::kF32, {2, 3, 4, 4}, MemoryFormat::channels_last(), {}}, ValueRole::kInput);
  graph.add_output("y", batch_norm(x, {}, {}).y);
  EXPECT_THROW(expand(graph, none), InternalError);
}

}  // namespace
}  // namespace galley
