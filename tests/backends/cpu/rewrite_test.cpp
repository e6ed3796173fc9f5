// Rewrites of the CPU back end: afterwards the graph is well formed, and the reference, in double, computes the same results.

#include <gtest/gtest.h>

#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/rewrites.h"
#include "libcore/backends/weight_only.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/order_updates.h"
#include "tests/backends/cpu/add_gradients.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

TEST(CpuRewrites, BatchNormAndDepthwiseConvolutionGiveTheSameStep) {
  TinyNet plain, fused;
  build_tiny_net(plain, true, 3, true);
  add_training(plain);
  build_tiny_net(fused, true, 3, true);
  std::vector<std::string> asked;
  fuse_training(fused.graph);
  const PassReport report = fuse_batch_norm_depthwise(fused.graph, FakeTarget([&](const Graph&, const Node& node) {
                                                        asked.push_back(std::string(node.op->name));
                                                        return true;
                                                      }));
  EXPECT_EQ(asked, std::vector<std::string>{"batch_norm_depthwise"});
  EXPECT_TRUE(report.declined.empty());
  EXPECT_EQ(count(fused.graph, "batch_norm_depthwise"), 1);
  EXPECT_EQ(count(fused.graph, "batch_norm"), 6);
  EXPECT_EQ(count(fused.graph, "conv2d"), 6);
  verify(fused.graph);
  add_training(fused);
  verify(fused.graph);
  EXPECT_EQ(count(fused.graph, "batch_norm_depthwise_backward"), 1);
  const auto feeds = feeds_for(plain.graph);
  expect_same(results(fused.graph, feeds), results(plain.graph, feeds));
}

TEST(CpuRewrites, NormsAndPointwiseConvolutionsGiveTheSameStep) {
  for (const auto& [with_depthwise, accumulates] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    TinyNet plain, fused;
    build_tiny_net(plain, true, 3, true);
    add_training(plain, accumulates);
    build_tiny_net(fused, true, 3, true);
    fuse_training(fused.graph);
    if (with_depthwise) fuse_batch_norm_depthwise(fused.graph, kAnyKernel);
    add_training(fused, accumulates);
    order_updates(fused.graph);  // as in compilation: parameters are updated between the operators that are merged
    const size_t nodes = fused.graph.nodes().size();
    const PassReport refused = fuse_pointwise(fused.graph, kNoKernel);
    EXPECT_EQ(refused.declined.size(), 3u);
    EXPECT_EQ(fused.graph.nodes().size(), nodes);
    EXPECT_TRUE(
        fuse_pointwise(fused.graph, FakeTarget([](const Graph&, const Node& node) { return node.is("pointwise_batch_norm_depthwise"); }))
            .done.empty())
        << "one direction without the other";
    EXPECT_EQ(fused.graph.nodes().size(), nodes);
    const PassReport report = fuse_pointwise(fused.graph, kAnyKernel);
    EXPECT_EQ(report.done.size(), with_depthwise ? 4u : 3u);
    EXPECT_EQ(fused.graph.nodes().size(), with_depthwise ? nodes - 7 : nodes - 6);
    verify(fused.graph);
    EXPECT_EQ(count(fused.graph, "pointwise_batch_norm_backward"), with_depthwise ? 2 : 3);
    EXPECT_EQ(count(fused.graph, "pointwise_batch_norm_depthwise_backward"), with_depthwise ? 1 : 0);
    EXPECT_EQ(count(fused.graph, "pointwise_batch_norm_depthwise"), with_depthwise ? 1 : 0);
    ValueId moments = kNoValue;
    for (const Node& node : fused.graph.nodes()) {
      if (node.is("pointwise_batch_norm_depthwise")) moments = node.outputs[3];
      if (node.is("pointwise_batch_norm_depthwise_backward")) {
        EXPECT_EQ(node.input(9), moments) << "sums them again";
      }
    }
    const auto feeds = feeds_for(plain.graph);
    expect_same(results(fused.graph, feeds), results(plain.graph, feeds));
  }
}

TEST(CpuRewrites, LeavesGradientsThatOthersRead) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 4, 5, 5}), ValueRole::kInput),
              weight = g.add_input("w", f32({6, 4, 1, 1}), ValueRole::kParameter);
  const BatchNorm norm = batch_norm(conv2d(x, weight, Value(), {}), Value(), Value());
  const std::map<ValueId, ValueId> gradients =
      differentiate(g, sum(mul(norm.y, norm.y), std::vector<int64_t>{}).id(), std::vector<ValueId>{x.id(), weight.id()});
  for (const auto& [of, gradient] : gradients) g.add_output("d" + g.value(of).name, g.at(gradient));
  for (const Node& node : g.nodes()) {
    if (node.is("batch_norm_backward")) g.add_output("between", g.at(node.outputs[0]));
  }
  EXPECT_TRUE(fuse_pointwise(g, kAnyKernel).done.empty());
  EXPECT_EQ(count(g, "conv2d_backward_weights"), 1);
}

TEST(CpuRewrites, GatesGiveTheSameGradients) {
  const auto build = [](Graph& g, Activation activation, bool others_read) {
    const Value x = g.add_input("x", f32({2, 4, 5, 3}), ValueRole::kInput),
                weight = g.add_input("w", f32({4, 4, 1, 1}), ValueRole::kParameter);
    const Value gamma = g.add_input("gamma", f32({4}), ValueRole::kParameter), beta = g.add_input("beta", f32({4}), ValueRole::kParameter);
    BatchNormAttrs norm;
    norm.activation = activation;
    const Value y = batch_norm(x, gamma, beta, norm).y;
    const Value gated = mul(y, sigmoid(conv2d(adaptive_avg_pool2d(y, {}), weight, {}, {})));
    add_gradients(g, others_read ? add(gated, y) : gated, {x.id(), weight.id(), gamma.id(), beta.id()});
  };
  for (const Activation activation : {Activation::kNone, Activation::kHardswish}) {
    Graph plain, fused;
    build(plain, activation, false);
    build(fused, activation, false);
    EXPECT_TRUE(fuse_gates(fused, kNoKernel).done.empty());
    EXPECT_EQ(fuse_gates(fused, kAnyKernel).done.size(), 2u);
    verify(fused);
    EXPECT_EQ(count(fused, "sum_products"), 1);
    EXPECT_EQ(count(fused, "gated_batch_norm_backward"), 1);
    EXPECT_EQ(count(fused, "sum_to") + count(fused, "adaptive_avg_pool2d_backward"), 0);
    const auto feeds = feeds_for(plain);
    expect_same(results(fused, feeds), results(plain, feeds));
    EXPECT_TRUE(fuse_pointwise(fused, kAnyKernel).done.empty());
  }
  Graph read;  // the array is also read without the gate, so its gradient is a sum of three
  build(read, Activation::kNone, true);
  EXPECT_EQ(fuse_gates(read, kAnyKernel).done.size(), 1u);
}

TEST(CpuRewrites, SumsOfGradientsGiveTheSame) {
  const auto build = [&](Graph& g, bool pointwise) {
    const Value x = g.add_input("x", f32({2, 4, 5, 3}), ValueRole::kInput),
                first = g.add_input("first", f32({4, 4, 1, 1}), ValueRole::kParameter);
    const Value wide = g.add_input("wide", f32({6, 4, 1, 1}), ValueRole::kParameter),
                depthwise = g.add_input("depthwise", f32({6, 1, 3, 3}), ValueRole::kParameter);
    const Value narrow = g.add_input("narrow", f32({4, 6, 1, 1}), ValueRole::kParameter);
    Conv2dAttrs window;
    window.padding = {1};
    window.groups = 6;
    const Value a = add(x, conv2d(x, first, {}, {}));
    BatchNormAttrs norm;
    norm.activation = Activation::kRelu6;
    const Value inner = conv2d(batch_norm(conv2d(a, wide, {}, {}), {}, {}, norm).y, depthwise, {}, window);
    const Value result = add(a, conv2d(inner, narrow, {}, {}));
    if (pointwise) fuse_batch_norm_depthwise(g, kAnyKernel);
    add_gradients(g, result, {x.id(), first.id(), wide.id(), depthwise.id(), narrow.id()});
    if (pointwise) fuse_pointwise(g, kAnyKernel);
  };
  for (const bool pointwise : {false, true}) {
    Graph plain, fused;
    build(plain, false);
    build(fused, pointwise);
    EXPECT_EQ(count(fused, "pointwise_batch_norm_depthwise_backward"), pointwise ? 1 : 0);
    const int adds = count(fused, "add");
    EXPECT_TRUE(fuse_gradient_sums(fused, kNoKernel).done.empty());
    EXPECT_EQ(fuse_gradient_sums(fused, kAnyKernel).done.size(), 2u);
    EXPECT_EQ(count(fused, "add"), adds - 2);
    verify(fused);
    const auto feeds = feeds_for(plain);
    expect_same(results(fused, feeds), results(plain, feeds));
  }
}

TEST(CpuRewrites, BatchNormAndDepthwiseConvolutionKeepTheirSettings) {
  Graph g;
  BatchNormAttrs norm;
  norm.eps = 0.5;
  norm.activation = Activation::kRelu6;
  const Value x = g.add_input("x", f32({2, 4, 7, 6}), ValueRole::kInput);
  const BatchNorm made =
      batch_norm(x, g.add_input("gamma", f32({4}), ValueRole::kParameter), g.add_input("beta", f32({4}), ValueRole::kParameter), norm);
  Conv2dAttrs attrs;
  attrs.groups = 4;
  attrs.stride = {2, 1};
  attrs.padding = {1, 0};
  g.add_output("y", conv2d(made.y, g.add_input("w", f32({4, 1, 3, 2}), ValueRole::kParameter), Value(), attrs));
  g.add_output("mean", made.mean);
  g.add_output("var", made.var);
  const auto feeds = feeds_for(g);
  const auto want = results(g, feeds);
  EXPECT_EQ(fuse_batch_norm_depthwise(g, kAnyKernel).done.size(), 1u);
  EXPECT_EQ(g.nodes().size(), 1u);
  verify(g);
  expect_same(results(g, feeds), want);
}

TEST(CpuRewrites, LeavesBatchNormsThatAConvolutionCannotTake) {
  struct Case {
    const char* what;
    int64_t groups, outputs, dilation;
    bool bias, second_reader, residual, kernel;
    size_t declined;  // rejected candidates, each with a reason
  };
  for (const Case& c :
       {Case{"one group", 1, 4, 1, false, false, false, true, 0}, Case{"two groups", 2, 4, 1, false, false, false, true, 0},
        Case{"two outputs per channel", 4, 8, 1, false, false, false, true, 0}, Case{"dilation", 4, 4, 2, false, false, false, true, 0},
        Case{"bias", 4, 4, 1, true, false, false, true, 0}, Case{"residual", 4, 4, 1, false, false, true, true, 0},
        Case{"second reader", 4, 4, 1, false, true, false, true, 1}, Case{"no kernel", 4, 4, 1, false, false, false, false, 1}}) {
    Graph g;
    const Value x = g.add_input("x", f32({2, 4, 6, 6}), ValueRole::kInput);
    const Value y = batch_norm(x, Value(), Value(), {}, c.residual ? x : Value()).y;
    Conv2dAttrs attrs;
    attrs.groups = c.groups;
    attrs.dilation = {c.dilation};
    const Value w = g.add_input("w", f32({c.outputs, 4 / c.groups, 2, 2}), ValueRole::kParameter);
    g.add_output("y", conv2d(y, w, c.bias ? g.add_input("b", f32({c.outputs}), ValueRole::kParameter) : Value(), attrs));
    if (c.second_reader) g.add_output("z", neg(y));
    const PassReport report = fuse_batch_norm_depthwise(g, c.kernel ? kAnyKernel : kNoKernel);
    EXPECT_TRUE(report.done.empty()) << c.what;
    EXPECT_EQ(report.declined.size(), c.declined) << c.what;
    EXPECT_EQ(count(g, "batch_norm_depthwise"), 0) << c.what;
  }
}

TEST(CpuRewrites, WideningComputesTheSameBetweenCasts) {
  TinyNet net;
  build_tiny_net(net);
  assign_precision(net.graph, {.compute = DType::kBF16, .keep_f32 = {}});
  differentiate(net.graph, net.graph.find_output("loss"), net.parameters);
  Graph untouched = net.graph;
  EXPECT_EQ(widen_unsupported(untouched, kAnyKernel).widened, 0);
  EXPECT_EQ(print(untouched), print(net.graph));

  Graph wide = net.graph;
  EXPECT_GT(widen_unsupported(wide, kNoKernel).widened, 20);
  verify(wide);
  for (const Node& node : wide.nodes()) {
    if (node.is("cast") || is_view(wide, node)) continue;
    for (ValueId id : node.inputs)
      EXPECT_TRUE(id == kNoValue || wide.type(id).dtype != DType::kBF16) << node.op->name << " at " << node.path;
  }
  const auto feeds = feeds_for(net.graph);
  expect_same(results(wide, feeds), results(net.graph, feeds));

  Graph some = net.graph;
  widen_unsupported(some, FakeTarget([](const Graph&, const Node& node) { return !node.is("conv2d"); }));
  verify(some);
  for (const Node& node : some.nodes()) {
    if (node.is("conv2d") || node.is("batch_norm")) {
      EXPECT_EQ(some.type(node.inputs[0]).dtype, node.is("conv2d") ? DType::kF32 : DType::kBF16) << node.path;
    }
  }
}

TEST(CpuRewrites, StoredWeightsGiveTheSameResults) {
  Graph graph;
  const Value x = graph.add_input("x", f32({3, 12}), ValueRole::kInput);
  const auto layer = [&](Value in, const std::string& name, int64_t columns, int64_t group, ValueRole role) {
    DequantizeWeightAttrs attrs;
    attrs.group_size = group;
    TensorType stored = f32({columns, in.shape()[-1]});
    stored.dtype = DType::kI8;
    Shape scales{columns};
    if (group > 0) scales.push_back(in.shape()[-1] / group);
    const Value weight = dequantize_weight(graph.add_input(name, stored, role),
                                           graph.add_input(name + "_scale", f32(scales), ValueRole::kParameter), {}, attrs);
    LinearAttrs linear_attrs;
    linear_attrs.activation = Activation::kRelu;
    return std::pair(linear(in, weight, graph.add_input(name + "_bias", f32({columns}), ValueRole::kParameter), linear_attrs), weight);
  };
  const Value hidden = layer(x, "first", 8, 4, ValueRole::kParameter).first;
  const auto [second, read_twice] = layer(hidden, "second", 6, 0, ValueRole::kParameter);
  graph.add_output("weight", read_twice);
  graph.add_output("y", layer(second, "third", 5, 0, ValueRole::kInput).first);  // its weight is fed
  Graph changed = graph;
  EXPECT_TRUE(use_stored_weights(changed, kNoKernel, true, true).done.empty());
  EXPECT_EQ(print(changed), print(graph));
  EXPECT_EQ(use_stored_weights(changed, kAnyKernel, true, true).done.size(), 1u);
  verify(changed);
  EXPECT_EQ(count(changed, "weight_only_linear"), 1);
  EXPECT_EQ(count(changed, "linear"), 2);
  const auto feeds = feeds_for(graph);
  expect_same(results(changed, feeds), results(graph, feeds));
}

TEST(CpuRewrites, ActivationsAreRoundedForTheTypesOfWeightsThatAreAsked) {
  for (const int64_t bits : {4, 8}) {
    for (const int64_t asked : {4, 8}) {
      Graph graph;
      DequantizeWeightAttrs attrs;
      attrs.bits = bits;
      TensorType stored = f32({8, bits == 4 ? 16 : 32});
      stored.dtype = bits == 4 ? DType::kU8 : DType::kI8;
      const Value weight = dequantize_weight(graph.add_input("w", stored, ValueRole::kParameter),
                                             graph.add_input("scale", f32({8}), ValueRole::kParameter), {}, attrs);
      graph.add_output("y", linear(graph.add_input("x", f32({3, 32}), ValueRole::kInput), weight));
      use_stored_weights(graph, kAnyKernel, asked == 4, asked == 8);
      ASSERT_EQ(count(graph, "weight_only_linear"), 1);
      for (const Node& node : graph.nodes()) {
        if (!node.is("weight_only_linear")) continue;
        EXPECT_EQ(node.attrs<WeightOnlyLinearAttrs>().rounded, bits == asked) << bits;
      }
    }
  }
}

// Products of int4 weights round activations in inference; the forward pass of a training does not, since its gradients are of floats.
TEST(CpuRewrites, TrainingDoesNotRoundActivations) {
  for (const bool trains : {false, true}) {
    Graph graph;
    DequantizeWeightAttrs attrs;
    attrs.bits = 4;
    attrs.group_size = 32;
    TensorType stored = f32({8, 16});
    stored.dtype = DType::kU8;
    const Value weight = dequantize_weight(graph.add_input("w", stored, ValueRole::kParameter),
                                           graph.add_input("scale", f32({8, 1}), ValueRole::kParameter), {}, attrs);
    const Value y = linear(graph.add_input("x", f32({3, 32}), ValueRole::kInput), weight);
    if (trains) {
      graph.set_phase(Phase::kBackward);
      graph.add_output("gradient", affine(y, 2));
    }
    graph.add_output("y", y);
    EXPECT_EQ(use_stored_weights(graph, kAnyKernel, true, true).done.size(), 1u);
    for (const Node& node : graph.nodes()) {
      if (!node.is("weight_only_linear")) continue;
      EXPECT_EQ(node.attrs<WeightOnlyLinearAttrs>().rounded, !trains);
    }
    EXPECT_EQ(count(graph, "weight_only_linear"), 1);
  }
}

}  // namespace
}  // namespace galley::test
