// Every pass: verify holds afterwards and the interpreter, in double, gives the same results before and after.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/ops/reduce.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/order_updates.h"
#include "libcore/passes/plan_memory.h"
#include "libcore/passes/recompute.h"
#include "tests/support/graphs.h"

namespace galley::test {
namespace {

/// All outputs and, under "new NAME", what every update left: what a run of the graph leaves behind.
std::map<std::string, RefArray> results(const Graph& graph, const std::map<std::string, RefArray>& feeds) {
  const std::map<ValueId, RefArray> values = interpret(graph, feeds);
  std::map<std::string, RefArray> found;
  for (const auto& [name, id] : graph.outputs()) found[name] = values.at(id);
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old != kNoValue) found["new " + graph.value(old).name] = values.at(node.outputs[static_cast<size_t>(update.output)]);
    }
  }
  return found;
}

/// Both in double: only the order of additions may differ, 1e-9 leaves three digits of room for graphs of this size.
void expect_same(const std::map<std::string, RefArray>& got, const std::map<std::string, RefArray>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    ASSERT_EQ(got.count(name), 1u) << name;
    const RefArray& mine = got.at(name);
    ASSERT_EQ(mine.shape, array.shape) << name;
    for (size_t i = 0; i < array.v.size(); ++i) ASSERT_TRUE(std::abs(mine.v[i] - array.v[i]) <= 1e-9 * (1 + std::abs(array.v[i]))) << name << "[" << i << "]";
  }
}

int count(const Graph& graph, std::string_view op) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.is(op);
  return found;
}

int forward_nodes(const Graph& graph) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.phase == Phase::kForward;
  return found;
}

TEST(Fuse, TrainingFormGivesTheSameStep) {
  TinyNet plain, fused;
  build_tiny_net(plain);
  add_training(plain);
  build_tiny_net(fused);
  const PassReport report = fuse_training(fused.graph);
  EXPECT_EQ(report.done.size(), 5u);
  EXPECT_EQ(count(fused.graph, "relu") + count(fused.graph, "add"), 0);
  verify(fused.graph);
  add_training(fused);
  verify(fused.graph);
  const auto feeds = feeds_for(plain.graph);
  expect_same(results(fused.graph, feeds), results(plain.graph, feeds));
}

TEST(Fuse, BatchNormAndDepthwiseConvolutionGiveTheSameStep) {
  TinyNet plain, fused;
  build_tiny_net(plain, true, 3, true);
  add_training(plain);
  build_tiny_net(fused, true, 3, true);
  std::vector<std::string> asked;
  const PassReport report = fuse_training(fused.graph, [&](const Graph&, const Node& node) {
    asked.push_back(std::string(node.op->name));
    return true;
  });
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

TEST(Fuse, NormsAndPointwiseConvolutionsGiveTheSameStep) {
  for (const bool with_depthwise : {false, true}) {
    TinyNet plain, fused;
    build_tiny_net(plain, true, 3, true);
    add_training(plain);
    build_tiny_net(fused, true, 3, true);
    fuse_training(fused.graph, [&](const Graph&, const Node&) { return with_depthwise; });
    add_training(fused);
    order_updates(fused.graph);  // as compilation has it: parameters are updated between the operators that become one
    const size_t nodes = fused.graph.nodes().size();
    const PassReport refused = fuse_pointwise(fused.graph, [](const Graph&, const Node&) { return false; });
    EXPECT_EQ(refused.declined.size(), 3u);
    EXPECT_EQ(fused.graph.nodes().size(), nodes);
    EXPECT_TRUE(fuse_pointwise(fused.graph, [](const Graph&, const Node& node) { return node.is("pointwise_batch_norm_depthwise"); }).done.empty()) << "one direction without the other";
    EXPECT_EQ(fused.graph.nodes().size(), nodes);
    const PassReport report = fuse_pointwise(fused.graph, [](const Graph&, const Node&) { return true; });
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

TEST(Fuse, LeavesGradientsThatOthersRead) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 4, 5, 5}), ValueRole::kInput), weight = g.add_input("w", f32({6, 4, 1, 1}), ValueRole::kParameter);
  const BatchNorm norm = batch_norm(conv2d(x, weight, Value(), {}), Value(), Value());
  const std::map<ValueId, ValueId> gradients = differentiate(g, sum(mul(norm.y, norm.y), std::vector<int64_t>{}).id(), std::vector<ValueId>{x.id(), weight.id()});
  for (const auto& [of, gradient] : gradients) g.add_output("d" + g.value(of).name, g.at(gradient));
  for (const Node& node : g.nodes()) {
    if (node.is("batch_norm_backward")) g.add_output("between", g.at(node.outputs[0]));
  }
  EXPECT_TRUE(fuse_pointwise(g, [](const Graph&, const Node&) { return true; }).done.empty());
  EXPECT_EQ(count(g, "conv2d_backward_weights"), 1);
}

/// Gradients of what leads to a sum of squares, as outputs.
void add_gradients(Graph& g, Value result, const std::vector<ValueId>& of) {
  for (const auto& [value, gradient] : differentiate(g, sum(mul(result, result), std::vector<int64_t>{}).id(), of)) g.add_output("d" + g.value(value).name, g.at(gradient));
}

TEST(Fuse, GatesGiveTheSameGradients) {
  const auto build = [](Graph& g, Activation activation, bool others_read) {
    const Value x = g.add_input("x", f32({2, 4, 5, 3}), ValueRole::kInput), weight = g.add_input("w", f32({4, 4, 1, 1}), ValueRole::kParameter);
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
    EXPECT_TRUE(fuse_gates(fused, [](const Graph&, const Node&) { return false; }).done.empty());
    EXPECT_EQ(fuse_gates(fused, [](const Graph&, const Node&) { return true; }).done.size(), 2u);
    verify(fused);
    EXPECT_EQ(count(fused, "sum_products"), 1);
    EXPECT_EQ(count(fused, "sum_to") + count(fused, "adaptive_avg_pool2d_backward"), 0);
    const auto feeds = feeds_for(plain);
    expect_same(results(fused, feeds), results(plain, feeds));
    EXPECT_TRUE(fuse_pointwise(fused, [](const Graph&, const Node&) { return true; }).done.empty());
  }
  Graph read;  // the array goes past its gate too: its gradient is a sum of three
  build(read, Activation::kNone, true);
  EXPECT_EQ(fuse_gates(read, [](const Graph&, const Node&) { return true; }).done.size(), 1u);
}

TEST(Fuse, SumsOfGradientsGiveTheSame) {
  const auto any = [](const Graph&, const Node&) { return true; };
  const auto build = [&](Graph& g, bool pointwise) {
    const Value x = g.add_input("x", f32({2, 4, 5, 3}), ValueRole::kInput), first = g.add_input("first", f32({4, 4, 1, 1}), ValueRole::kParameter);
    const Value wide = g.add_input("wide", f32({6, 4, 1, 1}), ValueRole::kParameter), depthwise = g.add_input("depthwise", f32({6, 1, 3, 3}), ValueRole::kParameter);
    const Value narrow = g.add_input("narrow", f32({4, 6, 1, 1}), ValueRole::kParameter);
    Conv2dAttrs window;
    window.padding = {1};
    window.groups = 6;
    const Value a = add(x, conv2d(x, first, {}, {}));
    BatchNormAttrs norm;
    norm.activation = Activation::kRelu6;
    const Value inner = conv2d(batch_norm(conv2d(a, wide, {}, {}), {}, {}, norm).y, depthwise, {}, window);
    const Value result = add(a, conv2d(inner, narrow, {}, {}));
    if (pointwise) fuse_training(g, any);
    add_gradients(g, result, {x.id(), first.id(), wide.id(), depthwise.id(), narrow.id()});
    if (pointwise) fuse_pointwise(g, any);
  };
  for (const bool pointwise : {false, true}) {
    Graph plain, fused;
    build(plain, false);
    build(fused, pointwise);
    EXPECT_EQ(count(fused, "pointwise_batch_norm_depthwise_backward"), pointwise ? 1 : 0);
    const int adds = count(fused, "add");
    EXPECT_TRUE(fuse_gradient_sums(fused, [](const Graph&, const Node&) { return false; }).done.empty());
    EXPECT_EQ(fuse_gradient_sums(fused, any).done.size(), 2u);
    EXPECT_EQ(count(fused, "add"), adds - 2);
    verify(fused);
    const auto feeds = feeds_for(plain);
    expect_same(results(fused, feeds), results(plain, feeds));
  }
}

TEST(Fuse, BatchNormAndDepthwiseConvolutionKeepTheirSettings) {
  Graph g;
  BatchNormAttrs norm;
  norm.eps = 0.5;
  norm.activation = Activation::kRelu6;
  const Value x = g.add_input("x", f32({2, 4, 7, 6}), ValueRole::kInput);
  const BatchNorm made = batch_norm(x, g.add_input("gamma", f32({4}), ValueRole::kParameter), g.add_input("beta", f32({4}), ValueRole::kParameter), norm);
  Conv2dAttrs attrs;
  attrs.groups = 4;
  attrs.stride = {2, 1};
  attrs.padding = {1, 0};
  g.add_output("y", conv2d(made.y, g.add_input("w", f32({4, 1, 3, 2}), ValueRole::kParameter), Value(), attrs));
  g.add_output("mean", made.mean);
  g.add_output("var", made.var);
  const auto feeds = feeds_for(g);
  const auto want = results(g, feeds);
  EXPECT_EQ(fuse_training(g, [](const Graph&, const Node&) { return true; }).done.size(), 1u);
  EXPECT_EQ(g.nodes().size(), 1u);
  verify(g);
  expect_same(results(g, feeds), want);
}

TEST(Fuse, LeavesBatchNormsThatAConvolutionCannotTake) {
  struct Case {
    const char* what;
    int64_t groups, outputs, dilation;
    bool bias, second_reader, residual, kernel;
    size_t declined;  // with a reason; others are no candidates
  };
  for (const Case& c : {Case{"one group", 1, 4, 1, false, false, false, true, 0}, Case{"two groups", 2, 4, 1, false, false, false, true, 0},
                        Case{"two outputs a channel", 4, 8, 1, false, false, false, true, 0}, Case{"dilation", 4, 4, 2, false, false, false, true, 0},
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
    const PassReport report = fuse_training(g, [&](const Graph&, const Node&) { return c.kernel; });
    EXPECT_TRUE(report.done.empty()) << c.what;
    EXPECT_EQ(report.declined.size(), c.declined) << c.what;
    EXPECT_EQ(count(g, "batch_norm_depthwise"), 0) << c.what;
  }
}

TEST(Fuse, LeavesValuesThatOthersRead) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 3, 4, 4}), ValueRole::kInput);
  const BatchNorm norm = batch_norm(x, Value(), Value());
  g.add_output("a", relu(norm.y));
  g.add_output("b", neg(norm.y));
  const PassReport report = fuse_training(g);
  EXPECT_TRUE(report.done.empty());
  ASSERT_EQ(report.declined.size(), 1u);
  EXPECT_NE(report.declined[0].find("2 readers"), std::string::npos) << report.declined[0];
  EXPECT_EQ(count(g, "relu"), 1);

  Graph h;
  const Value y = conv2d(h.add_input("x", f32({2, 3, 4, 4}), ValueRole::kInput), h.add_input("w", f32({3, 3, 1, 1}), ValueRole::kParameter), Value(), {});
  h.add_output("conv", y);
  h.add_output("relu", relu(y));
  EXPECT_EQ(fuse_inference(h).declined.size(), 1u);
  EXPECT_EQ(count(h, "relu"), 1);
}

TEST(Fuse, InferenceFoldsAndFuses) {
  TinyNet net;
  build_tiny_net(net, false);
  const auto feeds = feeds_for(net.graph);
  const auto want = results(net.graph, feeds);
  EXPECT_EQ(fold_batch_norm(net.graph).done.size(), 4u);
  verify(net.graph);
  EXPECT_EQ(count(net.graph, "batch_norm_inference"), 0);
  expect_same(results(net.graph, feeds), want);
  const PassReport report = fuse_inference(net.graph);
  EXPECT_EQ(report.done.size(), 5u) << "four relus and an add";
  verify(net.graph);
  EXPECT_EQ(count(net.graph, "relu"), 0);
  expect_same(results(net.graph, feeds), want);
}

TEST(FoldBatchNorm, KeepsBiasAndDeclinesTwoReaders) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 3}), ValueRole::kInput), w = g.add_input("w", f32({4, 3}), ValueRole::kParameter);
  const Value b = g.add_input("b", f32({4}), ValueRole::kParameter), mean = g.add_input("mean", f32({4}), ValueRole::kBuffer);
  const Value var = g.add_input("bn.running_var", f32({4}), ValueRole::kBuffer);
  const Value y = linear(x, w, b), z = linear(x, w);
  g.add_output("y", batch_norm_inference(y, Value(), Value(), mean, var));
  g.add_output("z", add(batch_norm_inference(z, Value(), Value(), mean, var), z));
  const auto feeds = feeds_for(g);
  const auto want = results(g, feeds);
  const PassReport report = fold_batch_norm(g);
  EXPECT_EQ(report.done.size(), 1u);
  EXPECT_EQ(report.declined.size(), 1u);
  verify(g);
  expect_same(results(g, feeds), want);
}

TEST(Recompute, GivesTheSameStepWithLessMemory) {
  TinyNet plain;
  build_tiny_net(plain, true, 8);
  fuse_training(plain.graph);
  add_training(plain);
  const auto feeds = feeds_for(plain.graph);
  const auto want = results(plain.graph, feeds);
  Graph ordered = plain.graph;
  order_updates(ordered);
  const int64_t all_kept = plan_memory(ordered, {}).arena_bytes;
  for (const bool full : {false, true}) {
    Graph graph = plain.graph;
    const PassReport report = recompute(graph, full ? recompute_full(graph) : recompute_selective());
    EXPECT_FALSE(report.done.empty());
    verify(graph);
    EXPECT_EQ(forward_nodes(graph), forward_nodes(plain.graph)) << "clones belong to the backward pass";
    expect_same(results(graph, feeds), want);
    order_updates(graph);
    verify(graph);
    expect_same(results(graph, feeds), want);
    if (full) continue;
    EXPECT_LT(plan_memory(graph, {}).arena_bytes, all_kept);
  }
}

TEST(OrderUpdates, UpdatesStandWhereGradientsAreFinal) {
  TinyNet net;
  build_tiny_net(net);
  add_training(net);
  const auto feeds = feeds_for(net.graph);
  const auto want = results(net.graph, feeds);
  const int64_t before = plan_memory(net.graph, {}).arena_bytes;
  EXPECT_GT(order_updates(net.graph), 0);
  verify(net.graph);
  expect_same(results(net.graph, feeds), want);
  EXPECT_LE(plan_memory(net.graph, {}).arena_bytes, before);
  int last_forward = 0, first_update = -1, last_backward = 0, index = 0;
  for (const Node& node : net.graph.nodes()) {
    if (node.phase == Phase::kForward) last_forward = index;
    if (node.phase == Phase::kBackward) last_backward = index;
    if (node.phase == Phase::kUpdate && first_update < 0) first_update = index;
    ++index;
  }
  EXPECT_GT(first_update, last_forward) << "the loss is known before the first update";
  EXPECT_LT(first_update, last_backward) << "updates run during the backward pass";
}

TEST(OrderUpdates, WaitsForTheLastReaderOfTheOldValue) {
  Graph g;
  const Value w = g.add_input("w", f32({2}), ValueRole::kParameter), x = g.add_input("x", f32({2}), ValueRole::kInput);
  const Value lr = g.add_input("lr", f32(Shape{}), ValueRole::kInput), step = g.add_input("step", i64(Shape{}), ValueRole::kInput);
  g.set_phase(Phase::kBackward);
  const Value gradient = mul(x, x);
  const Value late = mul(mul(gradient, x), w);
  g.add_output("late", late);
  g.set_phase(Phase::kUpdate);
  sgd_update(w, gradient, lr, step, Value(), Value(), {});
  order_updates(g);
  verify(g);
  EXPECT_TRUE(g.nodes().back().is("sgd_update"));
}

TEST(AssignLayout, IsChannelsLastFromEndToEnd) {
  TinyNet net;
  build_tiny_net(net);
  fuse_training(net.graph);
  add_training(net);
  const auto feeds = feeds_for(net.graph);
  const auto want = results(net.graph, feeds);
  LayoutOptions options;
  options.preferred_weight = [](const Graph& graph, const Node& node, size_t) {
    EXPECT_TRUE(graph.type(node.inputs[0]).format.is_channels_last() || node.is("linear")) << node.op->name;
    return node.is("conv2d") ? MemoryFormat::blocked("Acdb8a") : MemoryFormat();
  };
  options.preferred_output = [](const Graph&, const Node&) { return MemoryFormat::blocked("Acdb8a"); };
  const LayoutReport report = assign_layout(net.graph, options);
  verify(net.graph);
  EXPECT_EQ(report.blocked_parameters, 4);
  for (const LayoutReport::Reorder& reorder : report.reorders) {
    EXPECT_TRUE(reorder.free || reorder.weight) << reorder.path << ": " << reorder.reason << ", " << reorder.bytes << " bytes";
  }
  int gradients = 0;
  for (const Node& node : net.graph.nodes()) {
    if (node.is("conv2d")) {
      EXPECT_TRUE(net.graph.type(node.outputs[0]).format.is_channels_last());
    }
    if (node.is("conv2d_backward_data")) {
      EXPECT_TRUE(net.graph.type(node.inputs[1]).format.is_contiguous()) << "asked for, and reordered";
    }
    if (!node.is("sgd_update")) continue;
    const MemoryFormat format = net.graph.type(node.inputs[0]).format;
    for (size_t i : {1u, 4u}) EXPECT_EQ(net.graph.type(node.inputs[i]).format, format) << net.graph.value(node.inputs[0]).name;
    gradients += format.is_blocked();
  }
  EXPECT_EQ(gradients, 4);
  expect_same(results(net.graph, feeds), want);
}

TEST(AssignLayout, PlainGradientsAreReorderedBeforeTheirUpdate) {
  TinyNet net;
  build_tiny_net(net);
  add_training(net);
  const auto feeds = feeds_for(net.graph);
  const auto want = results(net.graph, feeds);
  LayoutOptions options;
  options.preferred_weight = [](const Graph&, const Node& node, size_t) { return node.is("conv2d") ? MemoryFormat::blocked("Acdb8a") : MemoryFormat(); };
  const LayoutReport report = assign_layout(net.graph, options);
  verify(net.graph);
  int weights = 0;
  for (const LayoutReport::Reorder& reorder : report.reorders) weights += reorder.weight;
  EXPECT_EQ(weights, 4 + 3) << "four gradients to their parameter's format, three weights back for the data gradient";
  for (const Node& node : net.graph.nodes()) {
    if (!node.is("sgd_update")) continue;
    for (size_t i : {1u, 4u}) EXPECT_EQ(net.graph.type(node.inputs[i]).format, net.graph.type(node.inputs[0]).format) << net.graph.value(node.inputs[0]).name;
  }
  expect_same(results(net.graph, feeds), want);
}

TEST(AssignLayout, GivenFormatsAreKept) {
  TinyNet net;
  build_tiny_net(net, false);
  LayoutOptions options;
  options.given["conv1.weight"] = MemoryFormat::blocked("Acdb8a");
  options.preferred_weight = [](const Graph&, const Node&, size_t) { return MemoryFormat(); };
  assign_layout(net.graph, options);
  verify(net.graph);
  EXPECT_TRUE(net.graph.type(net.graph.find_input("conv1.weight")).format.is_blocked());
  EXPECT_TRUE(net.graph.type(net.graph.find_input("conv2.weight")).format.is_contiguous());
  for (const Node& node : net.graph.nodes()) {
    if (node.is("conv2d")) {
      EXPECT_TRUE(net.graph.type(node.inputs[1]).format.is_contiguous());
    }
  }
}

TEST(AssignLayout, LeavesAttentionContiguous) {
  Graph g;
  const Value q = g.add_input("q", f32({2, 2, 4, 8}), ValueRole::kInput), k = g.add_input("k", f32({2, 2, 4, 8}), ValueRole::kInput);
  g.add_output("y", relu(matmul(q, k, {false, true})));
  EXPECT_TRUE(assign_layout(g, {}).reorders.empty());
  for (size_t v = 0; v < g.value_count(); ++v) EXPECT_TRUE(g.type(static_cast<ValueId>(v)).format.is_contiguous());
}

}  // namespace
}  // namespace galley::test
