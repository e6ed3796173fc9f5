// Graph text and the laws of verify, on graphs of real operators.

#include <gtest/gtest.h>

#include "libcore/ops/reduce.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/order_updates.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

TEST(GraphText, ReadsBackWhatItPrints) {
  TinyNet net;
  build_tiny_net(net);
  add_training(net);
  order_updates(net.graph);
  LayoutOptions options;
  FakeTarget target;
  options.target = &target;
  target.weight = [](const Graph&, const Node& node) { return node.is("conv2d") ? MemoryFormat::blocked("Acdb8a") : MemoryFormat(); };
  assign_layout(net.graph, options);
  const std::string text = print(net.graph);
  const Graph again = parse_graph(text);
  EXPECT_EQ(print(again), text);
  ASSERT_EQ(again.nodes().size(), net.graph.nodes().size());
  for (size_t n = 0; n < again.nodes().size(); ++n) {
    const Node &a = again.nodes()[n], &b = net.graph.nodes()[n];
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.path, b.path);
    EXPECT_EQ(a.phase, b.phase);
    ASSERT_EQ(a.outputs.size(), b.outputs.size());
    for (size_t o = 0; o < a.outputs.size(); ++o) EXPECT_EQ(again.type(a.outputs[o]), net.graph.type(b.outputs[o]));
  }
}

TEST(GraphText, KeepsNamesStringsAndNumbers) {
  Graph g;
  TensorType type = f32({2, 3});
  type.names = {"N", ""};
  type.placement[PlacementAxis::kData] = Held::kOwn;
  type.placement[PlacementAxis::kShard] = Held::kRange;
  g.set_path("a \"quoted\" path");
  const Value x = g.add_input("with blank \\ and \"quote\"", type, ValueRole::kInput);
  ReshapeAttrs named;
  named.shape = {3, 2};
  named.names = {"rows", "columns"};
  g.add_output("y", reshape(affine(x, 0.1, -1e-300), named));
  g.add_output("z", clamp(x, -std::numeric_limits<double>::infinity(), 2));
  const std::string text = print(g);
  const Graph again = parse_graph(text);
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(again.nodes()[0].attrs<AffineAttrs>().scale, 0.1);
  EXPECT_EQ(again.nodes()[0].attrs<AffineAttrs>().shift, -1e-300);
  EXPECT_EQ(again.type(again.nodes()[1].outputs[0]).names, named.names);
  EXPECT_NE(text.find("f32 [2,3] (N,_) held(data=own,shard=range)"), std::string::npos) << text;
  EXPECT_EQ(again.type(again.nodes()[1].outputs[0]).placement, type.placement);
  EXPECT_EQ(again.value(again.inputs()[0]).name, "with blank \\ and \"quote\"");
}

TEST(GraphText, SaysWhereItIsWrong) {
  Graph g;
  g.add_output("y", relu(g.add_input("x", f32({2}), ValueRole::kInput)));
  const std::string good = print(g);
  EXPECT_EQ(good, "galley graph 1\n%0 = input \"x\" : f32 [2]\n%1 = relu(%0) : f32 [2]\noutput \"y\" = %1\n");
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_graph(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput) << error.message();
      return error.message();
    }
    return "";
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_NE(message(replaced("relu(%0)", "relux(%0)")).find("line 3"), std::string::npos);
  EXPECT_NE(message(replaced("relu(%0)", "relu(%7)")).find("%7 is used before it is defined"), std::string::npos);
  EXPECT_NE(message(replaced("relu(%0)", "relu(%0) slope=2")).find("no attribute 'slope'"), std::string::npos);
  EXPECT_NE(message(replaced("relu(%0) : f32 [2]", "relu(%0) : f32 [3]")).find("not a valid graph"), std::string::npos);
  EXPECT_NE(message(replaced("f32 [2]", "f32 [2,-1]")), "");
  EXPECT_NE(message(replaced("f32 [2]", "f33 [2]")), "");
  // Every prefix of the text is an error, except the whole text.
  for (size_t end = 0; end + 1 < good.size(); ++end) {
    if (good[end] == '\n' && end > 15) continue;  // whole lines are a graph without outputs
    if (end > 0 && good[end - 1] == '\n') continue;
    EXPECT_NE(message(good.substr(0, end)), "") << end;
  }
}

TEST(Verify, RefusesReadersOfOverwrittenState) {
  Graph g;
  const Value w = g.add_input("w", f32({2}), ValueRole::kParameter);
  const Value lr = g.add_input("lr", f32(Shape{}), ValueRole::kInput), step = g.add_input("step", i64(Shape{}), ValueRole::kInput);
  const Value view = reshape(w, {1, 2});
  const Value gradient = square(w);
  sgd_update(w, gradient, lr, step, Value(), Value(), {});
  verify(g);
  Graph late_reader = g;
  late_reader.add_output("late", neg(late_reader.at(w.id())));
  EXPECT_THROW(verify(late_reader), InternalError);
  Graph late_view = g;
  late_view.add_output("late", neg(late_view.at(view.id())));
  EXPECT_THROW(verify(late_view), InternalError) << "a view is the same memory";
  Graph two_writers = g;
  sgd_update(two_writers.at(w.id()), two_writers.at(gradient.id()), two_writers.at(lr.id()), two_writers.at(step.id()), Value(), Value(),
             {});
  EXPECT_THROW(verify(two_writers), InternalError);
  Graph old_output = g;
  old_output.add_output("old", w.id());
  EXPECT_THROW(verify(old_output), InternalError);
}

TEST(Verify, RefusesWrongTypesAndOrder) {
  Graph g;
  const Value x = g.add_input("x", f32({2}), ValueRole::kInput);
  const Value y = relu(x);
  g.add_output("y", neg(y));
  verify(g);
  Graph wrong_type = g;
  wrong_type.value(y.id()).type.shape = Shape{3};
  EXPECT_THROW(verify(wrong_type), InternalError);
  Graph wrong_order = g;
  std::swap(wrong_order.nodes()[0], wrong_order.nodes()[1]);
  EXPECT_THROW(verify(wrong_order), InternalError);
  Graph made_twice = g;
  made_twice.nodes()[1].outputs = made_twice.nodes()[0].outputs;
  EXPECT_THROW(verify(made_twice), InternalError);
  Graph no_state = g;
  accumulate(no_state.at(x.id()), no_state.at(x.id()));
  EXPECT_THROW(verify(no_state), InternalError) << "an input that is fed is not updated";
}

}  // namespace
}  // namespace galley::test
