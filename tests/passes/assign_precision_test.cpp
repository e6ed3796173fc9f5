// passes/assign_precision: types by the rules of the operators, values within the rounding of bf16, and the f32 form of operators without a
// bf16 kernel.

#include "libcore/passes/assign_precision.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/ops/attention.h"
#include "tests/support/graphs.h"

namespace galley::test {
namespace {

const PrecisionPolicy kBf16{.compute = DType::kBF16, .keep_f32 = {}};

const Node& node_at(const Graph& graph, std::string_view op, std::string_view path) {
  for (const Node& node : graph.nodes()) {
    if (node.is(op) && node.path == path) return node;
  }
  fail(ErrorCode::kInternal, "no ", op, " at ", path);
}

DType type_of(const Graph& graph, ValueId id) { return graph.type(id).dtype; }

std::map<std::string, RefArray> feeds_of(const Graph& graph) {
  std::map<std::string, RefArray> feeds;
  for (ValueId id : graph.inputs()) {
    const ValueInfo& value = graph.value(id);
    feeds[value.name] = value.type.dtype == DType::kI64
                            ? RefArray{value.type.shape, std::vector<double>(static_cast<size_t>(value.type.elements()), 1)}
                            : random_array(value.type, static_cast<uint64_t>(id) + 1, value.name.ends_with("var") ? 0.5 : -1);
  }
  return feeds;
}

TEST(AssignPrecision, TypesFollowTheOperatorsRules) {
  for (const bool training : {true, false}) {
    TinyNet net;
    build_tiny_net(net, training);
    const PassReport report = assign_precision(net.graph, kBf16);
    verify(net.graph);
    EXPECT_EQ(report.done.size(), 5u) << "four convolutions and the classifier";
    const Node& conv = node_at(net.graph, "conv2d", "conv1");
    EXPECT_EQ(type_of(net.graph, conv.inputs[0]), DType::kBF16);
    EXPECT_EQ(type_of(net.graph, conv.inputs[1]), DType::kBF16);
    EXPECT_EQ(type_of(net.graph, conv.outputs[0]), DType::kBF16);
    const Node& norm = node_at(net.graph, training ? "batch_norm" : "batch_norm_inference", "bn1");
    EXPECT_EQ(type_of(net.graph, norm.inputs[0]), DType::kBF16);
    for (size_t i = 1; i < norm.inputs.size(); ++i) EXPECT_EQ(type_of(net.graph, norm.inputs[i]), DType::kF32) << "parameters stay";
    EXPECT_EQ(type_of(net.graph, norm.outputs[0]), DType::kBF16);
    for (size_t i = 1; i < norm.outputs.size(); ++i) EXPECT_EQ(type_of(net.graph, norm.outputs[i]), DType::kF32) << "statistics stay";
    const Node& classifier = node_at(net.graph, "linear", "fc");
    EXPECT_EQ(type_of(net.graph, classifier.inputs[2]), DType::kF32) << "biases stay";
    for (const char* name : {"scores", "loss"}) EXPECT_EQ(type_of(net.graph, net.graph.find_output(name)), DType::kF32) << name;
    EXPECT_EQ(type_of(net.graph, node_at(net.graph, "cross_entropy", "").inputs[0]), DType::kF32);
    for (ValueId id : net.graph.inputs()) EXPECT_NE(type_of(net.graph, id), DType::kBF16) << "what is fed and kept stays";
  }
}

// The libraries of GPUs read biases in the dtype of the product. Vectors of norms and the bias of attention scores stay in f32.
TEST(AssignPrecision, BiasesOfProductsFollowThePolicy) {
  TinyNet net;
  build_tiny_net(net);
  PrecisionPolicy policy = kBf16;
  policy.biases = true;
  assign_precision(net.graph, policy);
  verify(net.graph);
  EXPECT_EQ(type_of(net.graph, node_at(net.graph, "linear", "fc").inputs[2]), DType::kBF16);
  const Node& norm = node_at(net.graph, "batch_norm", "bn1");
  for (size_t i = 1; i < norm.inputs.size(); ++i) EXPECT_EQ(type_of(net.graph, norm.inputs[i]), DType::kF32);
  Graph graph;
  const auto input = [&](const char* name, const Shape& shape) {
    return graph.add_input(name, {DType::kF32, shape, {}, {}}, ValueRole::kInput);
  };
  const Value query = input("query", {1, 2, 3, 4});
  graph.add_output("y", attention({.q = query, .k = query, .v = query, .bias = input("bias", {1, 3, 2, 2})}).o);
  assign_precision(graph, policy);
  const Node& node = node_at(graph, "attention", "");
  EXPECT_EQ(type_of(graph, node.inputs[0]), DType::kBF16);
  EXPECT_EQ(type_of(graph, node.inputs[3]), DType::kF32);
}

TEST(AssignPrecision, ModulesCanStayInF32AndF32ChangesNothing) {
  TinyNet net, same;
  build_tiny_net(net);
  build_tiny_net(same);
  const std::string before = print(same.graph);
  EXPECT_TRUE(assign_precision(same.graph, {}).done.empty());
  EXPECT_EQ(print(same.graph), before);
  const PassReport report = assign_precision(
      net.graph, {.compute = DType::kBF16, .keep_f32 = [](const Node& node) { return node.path == "conv2" || node.path == "fc"; }});
  EXPECT_EQ(report.done.size(), 3u);
  EXPECT_EQ(report.declined, (std::vector<std::string>{"conv2: conv2d", "fc: linear"}));
  const Node& conv = node_at(net.graph, "conv2d", "conv2");
  for (ValueId id : {conv.inputs[0], conv.inputs[1], conv.outputs[0]}) EXPECT_EQ(type_of(net.graph, id), DType::kF32);
  EXPECT_EQ(type_of(net.graph, node_at(net.graph, "conv2d", "conv3").outputs[0]), DType::kBF16);
}

/// The reference computes in double for all types and rounds nothing, so results must be equal.
void expect_same_array(const RefArray& a, const RefArray& b, const std::string& what) {
  ASSERT_EQ(a.shape, b.shape) << what;
  for (size_t i = 0; i < a.v.size(); ++i) ASSERT_NEAR(a.v[i], b.v[i], 1e-12 * (1 + std::abs(a.v[i]))) << what << "[" << i << "]";
}

TEST(AssignPrecision, LossAndGradientsAreOfTheSameModel) {
  TinyNet wide, narrow;
  build_tiny_net(wide);
  build_tiny_net(narrow);
  assign_precision(narrow.graph, kBf16);
  const auto feeds = feeds_of(wide.graph);
  const auto want = differentiate(wide.graph, wide.graph.find_output("loss"), wide.parameters),
             got = differentiate(narrow.graph, narrow.graph.find_output("loss"), narrow.parameters);
  verify(narrow.graph);
  const auto a = interpret(wide.graph, feeds), b = interpret(narrow.graph, feeds);
  for (const char* name : {"scores", "loss"})
    expect_same_array(a.at(wide.graph.find_output(name)), b.at(narrow.graph.find_output(name)), name);
  for (ValueId parameter : wide.parameters) {
    const std::string& name = wide.graph.value(parameter).name;
    EXPECT_EQ(type_of(narrow.graph, got.at(parameter)), DType::kF32) << name;
    expect_same_array(a.at(want.at(parameter)), b.at(got.at(parameter)), name);
  }
}

}  // namespace
}  // namespace galley::test
