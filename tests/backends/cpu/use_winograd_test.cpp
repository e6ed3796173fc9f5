// use_winograd: the new operators compute the same convolutions and input gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

struct Convolution {
  Shape x, weight;
  std::vector<int64_t> padding;
  bool fused = false;
};

/// A convolution with its input gradient, or a fused convolution for inference.
Graph graph_of(const Convolution& c) {
  Graph graph;
  const Value x = graph.add_input("x", f32(c.x), ValueRole::kInput),
              weight = graph.add_input("weight", f32(c.weight), ValueRole::kParameter);
  Conv2dAttrs attrs;
  attrs.padding = c.padding;
  const Shape shape = conv_shape(attrs, c.x, c.weight);
  if (c.fused) {
    attrs.activation = Activation::kRelu;
    graph.add_output("y", conv2d(x, weight, graph.add_input("bias", f32({c.weight[0]}), ValueRole::kParameter), attrs,
                                 graph.add_input("residual", f32(shape), ValueRole::kInput)));
    return graph;
  }
  graph.add_output("y", conv2d(x, weight, {}, attrs));
  Conv2dBackwardDataAttrs backward;
  backward.padding = c.padding;
  backward.input_size = {c.x[2], c.x[3]};
  graph.set_phase(Phase::kBackward);
  graph.add_output("dx", conv2d_backward_data(graph.add_input("grad", f32(shape), ValueRole::kInput), weight, backward));
  return graph;
}

TEST(Winograd, ComputesTheSameConvolutions) {
  const std::vector<Convolution> convolutions{
      {{6, 32, 16, 15}, {33, 32, 3, 3}, {1}},       {{6, 34, 18, 17}, {32, 34, 3, 3}, {0}},
      {{7, 32, 13, 14}, {36, 32, 3, 3}, {2}},       {{6, 33, 17, 14}, {32, 33, 3, 3}, {0, 2}},
      {{3, 32, 16, 15}, {33, 32, 3, 3}, {1}, true}, {{4, 32, 15, 15}, {32, 32, 3, 3}, {0, 1}, true}};
  for (const Convolution& c : convolutions) {
    const Graph plain = graph_of(c);
    Graph changed = plain;
    const PassReport report = use_winograd(changed, kAnyKernel);
    verify(changed);
    EXPECT_EQ(report.done.size(), plain.nodes().size());
    EXPECT_EQ(count(changed, "winograd_conv2d"), static_cast<int>(plain.nodes().size()));
    std::map<std::string, RefArray> feeds;
    for (ValueId id : plain.inputs()) feeds[plain.value(id).name] = random_array(plain.type(id), static_cast<uint64_t>(id) + 1);
    const auto want = interpret(plain, feeds), got = interpret(changed, feeds);
    for (size_t o = 0; o < plain.outputs().size(); ++o) {
      const RefArray &a = want.at(plain.outputs()[o].second), &b = got.at(changed.outputs()[o].second);
      ASSERT_EQ(a.shape, b.shape);
      double largest = 0;
      for (double v : a.v) largest = std::max(largest, std::abs(v));
      for (size_t i = 0; i < a.v.size(); ++i)
        ASSERT_NEAR(a.v[i], b.v[i], 1e-12 * largest) << plain.outputs()[o].first << "[" << i << "] of " << c.x.str();
    }
  }
}

TEST(Winograd, LeavesAnInputGradientThatIsAddedTo) {
  const auto changed = [](bool residual) {
    Graph g;
    Conv2dBackwardDataAttrs attrs;
    attrs.padding = {1};
    attrs.input_size = {16, 15};
    const Value grad = g.add_input("grad", f32({6, 33, 16, 15}), ValueRole::kInput),
                weight = g.add_input("w", f32({33, 32, 3, 3}), ValueRole::kParameter);
    g.add_output("dx", conv2d_backward_data(grad, weight, attrs,
                                            residual ? g.add_input("other", f32({6, 32, 16, 15}), ValueRole::kInput) : Value()));
    return use_winograd(g, kAnyKernel).done.size();
  };
  EXPECT_EQ(changed(false), 1u);
  EXPECT_EQ(changed(true), 0u);
}

TEST(Winograd, CostsAreThoseOfTheConvolutionAndExecutedOnesFewer) {
  const Graph plain = graph_of({{6, 32, 16, 16}, {48, 32, 3, 3}, {1}});
  Graph changed = plain;
  use_winograd(changed, kAnyKernel);
  const auto cost = [](const Graph& graph) {
    Cost sum;
    for (const Node& node : graph.nodes()) {
      const Cost each = cost_of(*node.op, context_of(graph, node));
      sum.flops += each.flops;
      sum.saved_flops += each.saved_flops;
    }
    return sum;
  };
  EXPECT_EQ(cost(plain).flops, cost(plain).executed_flops());
  EXPECT_EQ(cost(plain).flops, cost(changed).flops);
  // 36 products for 16 results instead of 144, both ways; transforms of 32 and 48 channels on 96 tiles, and of the kernels.
  const double products = 2 * 2.0 * 36 * 96 * 32 * 48, transforms = 96 * (144 + 120) * (32 + 48), kernels = 2 * 9 * 12 * 32 * 48;
  EXPECT_EQ(cost(changed).executed_flops(), products + transforms + kernels);
}

TEST(Winograd, LeavesOtherConvolutionsAlone) {
  const auto unchanged = [](const Shape& x, const Shape& weight, const Conv2dAttrs& attrs) {
    Graph graph;
    graph.add_output("y", conv2d(graph.add_input("x", f32(x), ValueRole::kInput),
                                 graph.add_input("weight", f32(weight), ValueRole::kParameter), {}, attrs));
    use_winograd(graph, kAnyKernel);
    return count(graph, "conv2d") == 1 && graph.nodes().size() == 1;
  };
  Conv2dAttrs padded;
  padded.padding = {1};
  EXPECT_FALSE(unchanged({4, 64, 14, 14}, {64, 64, 3, 3}, padded));  // the control
  Conv2dAttrs strided = padded, dilated = padded, grouped = padded;
  strided.stride = {1, 2};
  dilated.dilation = {2};
  grouped.groups = 2;
  EXPECT_TRUE(unchanged({4, 64, 14, 14}, {64, 64, 3, 3}, strided));
  EXPECT_TRUE(unchanged({4, 64, 14, 14}, {64, 64, 3, 3}, dilated));
  EXPECT_TRUE(unchanged({4, 64, 14, 14}, {64, 32, 3, 3}, grouped));
  EXPECT_TRUE(unchanged({4, 64, 14, 14}, {64, 64, 1, 3}, padded));
  EXPECT_TRUE(unchanged({4, 64, 14, 14}, {64, 64, 5, 5}, padded));
  EXPECT_TRUE(unchanged({4, 3, 14, 14}, {64, 3, 3, 3}, padded));  // too few channels to be faster
}

TEST(Winograd, TakesWeightGradients) {
  for (const int64_t channels : {3, 64}) {
    Graph graph;
    graph.set_phase(Phase::kBackward);
    Conv2dBackwardWeightsAttrs attrs;
    attrs.padding = {1};
    attrs.kernel_size = {3};
    const Value x = graph.add_input("x", f32({8, channels, 14, 14}), ValueRole::kInput),
                grad = graph.add_input("grad", f32({8, 64, 14, 14}), ValueRole::kInput);
    graph.add_output("dw", conv2d_backward_weights(x, grad, attrs));
    use_winograd(graph, kAnyKernel);
    EXPECT_EQ(count(graph, "winograd_conv2d_backward_weights"), channels == 64 ? 1 : 0);
  }
}

/// A quantized convolution of 3 x 3.
Graph integer_graph(const Shape& x, int64_t outputs, const QuantizedConv2dAttrs& attrs) {
  Graph graph;
  const auto array = [&](const char* name, DType dtype, const Shape& shape, ValueRole role) {
    TensorType type = f32(shape);
    type.dtype = dtype;
    return graph.add_input(name, type, role);
  };
  const Value image = array("x", DType::kU8, x, ValueRole::kInput),
              weight = array("weight", DType::kI8, {outputs, x[1] / attrs.groups, 3, 3}, ValueRole::kParameter);
  graph.add_output("y", quantized_conv2d(image, weight, array("scale", DType::kF32, {outputs}, ValueRole::kParameter), {}, attrs));
  return graph;
}

TEST(Winograd, GivesTheSameIntegers) {
  QuantizedConv2dAttrs attrs;
  attrs.padding = {1};
  attrs.input_zero_point = 77;
  const Graph plain = integer_graph({3, 32, 15, 14}, 33, attrs);
  Graph changed = plain;
  EXPECT_EQ(use_winograd(changed, kAnyKernel).done.size(), 1u);
  verify(changed);
  ASSERT_EQ(count(changed, "quantized_winograd_conv2d"), 1);
  std::map<std::string, RefArray> feeds;
  for (ValueId id : plain.inputs()) {
    RefArray& values = feeds[plain.value(id).name] = random_array(plain.type(id), static_cast<uint64_t>(id) + 1);
    if (plain.value(id).name == "scale") std::fill(values.v.begin(), values.v.end(), 1.0);
    if (plain.value(id).name == "x")
      std::transform(values.v.begin(), values.v.end(), values.v.begin(),
                     [](double v) { return std::clamp(std::round(128 + 100 * v), 0.0, 255.0); });
    if (plain.value(id).name == "weight")
      std::transform(values.v.begin(), values.v.end(), values.v.begin(),
                     [](double v) { return std::clamp(std::round(60 * v), -128.0, 127.0); });
  }
  const auto want = interpret(plain, feeds), got = interpret(changed, feeds);
  EXPECT_EQ(want.at(plain.outputs()[0].second).v, got.at(changed.outputs()[0].second).v);
}

TEST(Winograd, LeavesOtherIntegerConvolutionsAlone) {
  const auto changed = [](QuantizedConv2dAttrs attrs, const Shape& x) {
    attrs.padding = {1};
    Graph graph = integer_graph(x, 64, attrs);
    return !use_winograd(graph, kAnyKernel).done.empty();
  };
  QuantizedConv2dAttrs strided, grouped;
  strided.stride = {2};
  grouped.groups = 64;
  EXPECT_TRUE(changed({}, {2, 64, 14, 14}));
  EXPECT_FALSE(changed(strided, {2, 64, 14, 14}));
  EXPECT_FALSE(changed(grouped, {2, 64, 14, 14}));
  EXPECT_FALSE(changed({}, {2, 3, 14, 14}));  // too few channels
  EXPECT_FALSE(changed({}, {1, 512, 3, 3}));  // too few tiles for so many kernels
}

TEST(Winograd, AsksForAKernel) {
  Graph graph = graph_of({{6, 32, 16, 15}, {33, 32, 3, 3}, {1}});
  const PassReport report = use_winograd(graph, FakeTarget([](const Graph& probe, const Node& node) {
                                           EXPECT_TRUE(probe.type(node.inputs[0]).format.is_channels_last());
                                           EXPECT_EQ(probe.type(node.inputs[1]).format, winograd::transformed_format());
                                           return false;
                                         }));
  EXPECT_TRUE(report.done.empty());
  EXPECT_EQ(count(graph, "conv2d"), 1);
}

}  // namespace
}  // namespace galley::test
