// Every pass: afterwards the graph is well formed, and the interpreter, in double, has the same results before and after.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/order_updates.h"
#include "libcore/passes/plan_memory.h"
#include "libcore/passes/recompute.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

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
  const Value y = conv2d(h.add_input("x", f32({2, 3, 4, 4}), ValueRole::kInput), h.add_input("w", f32({3, 3, 1, 1}), ValueRole::kParameter),
                         Value(), {});
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

TEST(Recompute, SelectiveRunsRecurrentLayersOnce) {
  for (const std::string_view cell : {"lstm", "gru", "rnn"}) {
    SCOPED_TRACE(cell);
    const int64_t gates = cell == "lstm" ? 4 : cell == "gru" ? 3 : 1;
    Graph g;
    const Value x = g.add_input("x", f32({2, 5, 3}), ValueRole::kInput);
    const RecurrentWeights w{g.add_input("ih", f32({gates * 4, 3}), ValueRole::kParameter),
                             g.add_input("hh", f32({gates * 4, 4}), ValueRole::kParameter),
                             {},
                             {}};
    const Value in = tanh(x);
    const Value y = cell == "lstm" ? lstm(in, w).y : cell == "gru" ? gru(in, w).y : rnn(in, w).y;
    const Value objective = sum(square(tanh(y)), std::vector<int64_t>{});
    const std::map<ValueId, ValueId> gradients = differentiate(g, objective.id(), std::vector<ValueId>{w.ih.id(), w.hh.id()});
    g.add_output("dih", gradients.at(w.ih.id()));
    g.add_output("dhh", gradients.at(w.hh.id()));
    const auto feeds = feeds_for(g);
    const auto want = results(g, feeds);
    const PassReport report = recompute(g, recompute_selective());
    verify(g);
    expect_same(results(g, feeds), want);
    EXPECT_FALSE(report.done.empty()) << "tanh is run again";
    int layers = 0, functions = 0;
    for (const Node& node : g.nodes()) {
      layers += node.is(cell);
      functions += node.is("tanh");
    }
    EXPECT_EQ(layers, 1);
    EXPECT_GT(functions, 2);
  }
}

TEST(Recompute, ObservedRangesAreTakenOnce) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 3}), ValueRole::kInput), w = g.add_input("w", f32({4, 3}), ValueRole::kParameter);
  const Value low = g.add_input("low", f32({}), ValueRole::kState), high = g.add_input("high", f32({}), ValueRole::kState),
              on = g.add_input("on", f32({}), ValueRole::kInput);
  const Value y = tanh(linear(x, w, {}));
  const MovingRange range = observe_range(y, low, high, on, {});
  g.set_phase(Phase::kUpdate);
  keep_range(low, high, range);
  g.set_phase(Phase::kForward);
  const std::map<ValueId, ValueId> gradients = differentiate(g, sum(square(y), std::vector<int64_t>{}).id(), std::vector<ValueId>{w.id()});
  g.add_output("dw", gradients.at(w.id()));
  const auto feeds = feeds_for(g);
  const auto want = results(g, feeds);
  recompute(g, recompute_selective());
  verify(g);
  expect_same(results(g, feeds), want);
  EXPECT_EQ(std::count_if(g.nodes().begin(), g.nodes().end(), [](const Node& node) { return node.is("observe_range"); }), 1);
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
  FakeTarget target;
  options.target = &target;
  target.weight = [](const Graph& graph, const Node& node) {
    EXPECT_TRUE(graph.type(node.inputs[0]).format.is_channels_last() || node.is("linear")) << node.op->name;
    return node.is("conv2d") ? MemoryFormat::blocked("Acdb8a") : MemoryFormat();
  };
  target.output = [](const Graph&, const Node&) { return MemoryFormat::blocked("Acdb8a"); };
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
      EXPECT_TRUE(net.graph.type(node.inputs[1]).format.is_contiguous()) << "requested, and reordered";
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
  FakeTarget target;
  options.target = &target;
  target.weight = [](const Graph&, const Node& node) { return node.is("conv2d") ? MemoryFormat::blocked("Acdb8a") : MemoryFormat(); };
  const LayoutReport report = assign_layout(net.graph, options);
  verify(net.graph);
  int weights = 0;
  for (const LayoutReport::Reorder& reorder : report.reorders) weights += reorder.weight;
  EXPECT_EQ(weights, 4 + 3) << "four gradients to their parameter's format, three weights back for the data gradient";
  for (const Node& node : net.graph.nodes()) {
    if (!node.is("sgd_update")) continue;
    for (size_t i : {1u, 4u})
      EXPECT_EQ(net.graph.type(node.inputs[i]).format, net.graph.type(node.inputs[0]).format) << net.graph.value(node.inputs[0]).name;
  }
  expect_same(results(net.graph, feeds), want);
}

TEST(AssignLayout, StateOfAGraphOfUpdatesHasTheFormatOfItsParameter) {
  Graph graph;
  const TensorType type = f32({8, 4, 3, 3});
  const Value w = graph.add_input("w", type, ValueRole::kParameter), momentum = graph.add_input("w.momentum", type, ValueRole::kState);
  SgdUpdateAttrs attrs;
  attrs.momentum = 0.9;
  graph.set_phase(Phase::kUpdate);
  sgd_update(w, graph.add_input("grad", type, ValueRole::kInput), graph.add_input("lr", f32({}), ValueRole::kInput),
             graph.add_input("step", i64({}), ValueRole::kInput), momentum, {}, attrs);
  FakeTarget target;
  LayoutOptions options;
  options.target = &target;
  options.given["w"] = MemoryFormat::channels_last();
  assign_layout(graph, options);
  verify(graph);
  EXPECT_TRUE(graph.type(graph.find_input("w.momentum")).format.is_channels_last());
  // Formats that another program has chosen differently cannot be updated together.
  options.given["w.momentum"] = MemoryFormat::blocked("Acdb8a");
  EXPECT_THROW(assign_layout(graph, options), InternalError);
}

TEST(AssignLayout, GivenFormatsAreKept) {
  TinyNet net;
  build_tiny_net(net, false);
  LayoutOptions options;
  options.given["conv1.weight"] = MemoryFormat::blocked("Acdb8a");
  FakeTarget target;
  options.target = &target;
  target.weight = [](const Graph&, const Node&) { return MemoryFormat(); };
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
