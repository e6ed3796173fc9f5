// The laws of graphs, on operators of this file: no operator of the toolkit is linked.

#include "libcore/graph/graph.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace galley {
namespace {

TensorType f32(Shape shape) {
  TensorType type;
  type.shape = std::move(shape);
  return type;
}

std::vector<TensorType> like_first(const OpContext& c) { return {TensorType{.dtype = c.in(0).dtype, .shape = c.in(0).shape}}; }
std::vector<TensorType> equal_shapes(const OpContext& c) {
  GALLEY_CHECK(c.in(0).shape == c.in(1).shape, "shapes ", c.in(0).shape, " and ", c.in(1).shape, " differ");
  return like_first(c);
}
std::vector<TensorType> flat(const OpContext& c) { return {TensorType{.dtype = c.in(0).dtype, .shape = Shape{c.in(0).shape.elements()}}}; }

const OpDef kSum{.name = "test_sum", .doc = "a + b", .inputs = {"a", "b"}, .outputs = {"y"}, .infer = equal_shapes};
const OpDef kFlat{.name = "test_flat", .doc = "a vector", .inputs = {"x"}, .outputs = {"y"}, .infer = flat, .work = WorkClass::kView};
const OpDef kUpdate{.name = "test_update",
                    .doc = "state + x",
                    .inputs = {Port::state("state"), "x"},
                    .outputs = {Port::state("state")},
                    .infer = equal_shapes,
                    .work = WorkClass::kState,
                    .updates = {{0, 0}}};
const OpDef kReport{.name = "test_report", .doc = "tells", .inputs = {"x"}, .outputs = {"y"}, .infer = like_first, .has_effect = true};

void register_once() {
  static const bool done = [] {
    const std::array<const OpDef*, 4> ops{&kSum, &kFlat, &kUpdate, &kReport};
    register_ops(ops);
    return true;
  }();
  static_cast<void>(done);
}

Value sum(Graph& g, Value a, Value b) { return g.add_node(kSum, nullptr, {a.id(), b.id()}).front(); }
Value flatten(Graph& g, Value x) { return g.add_node(kFlat, nullptr, {x.id()}).front(); }

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}
/// Does the text contain all of these?
testing::AssertionResult says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) return testing::AssertionFailure() << "'" << word << "' is missing in '" << text << "'";
  }
  return testing::AssertionSuccess();
}

TEST(Graph, NodesInferTheirTypes) {
  Graph g;
  const Value a = g.add_input("a", f32({2, 3}), ValueRole::kInput), b = g.add_input("b", f32({2, 3}), ValueRole::kParameter);
  EXPECT_EQ(sum(g, a, b).shape(), (Shape{2, 3}));
  EXPECT_EQ(flatten(g, a).shape(), Shape{6});
  verify(g);
}

TEST(Graph, ErrorsNameTheOperatorAndTheModule) {
  Graph g;
  const Value a = g.add_input("a", f32({2, 3}), ValueRole::kInput), b = g.add_input("b", f32({3, 2}), ValueRole::kInput);
  const PathScope block(g, "layer1");
  const PathScope layer(g, "conv2");
  EXPECT_TRUE(says(message_of([&] { sum(g, a, b); }), {"test_sum", "[2,3]", "[3,2]", "at layer1.conv2"}));
  EXPECT_TRUE(says(message_of([&] { g.add_input("a", f32({}), ValueRole::kInput); }), {"'a'"}));
  EXPECT_TRUE(says(message_of([&] { g.add_node(kSum, nullptr, {a.id()}); }), {"needs its input b"}));
  EXPECT_TRUE(says(message_of([&] { g.add_node(kFlat, nullptr, {a.id(), b.id()}); }), {"takes 1 inputs, got 2"}));
  EXPECT_TRUE(g.nodes().empty());
}

TEST(Graph, PathsNest) {
  Graph g;
  {
    const PathScope outer(g, "layer1");
    {
      const PathScope unnamed(g, "");
      EXPECT_EQ(g.path(), "layer1");
      const PathScope inner(g, "0");
      EXPECT_EQ(g.path(), "layer1.0");
    }
    EXPECT_EQ(g.path(), "layer1");
  }
  EXPECT_EQ(g.path(), "");
}

TEST(Graph, KnowsWhoMakesAndWhoReadsAValue) {
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput);
  const Value twice = sum(g, a, a), more = sum(g, twice, a), unused = sum(g, twice, twice);
  EXPECT_EQ(g.producers(), (std::vector<int>{-1, 0, 1, 2}));
  const std::vector<std::vector<int>> users = g.users();
  EXPECT_EQ(users[static_cast<size_t>(a.id())], (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(users[static_cast<size_t>(twice.id())], (std::vector<int>{1, 2, 2}));
  EXPECT_TRUE(users[static_cast<size_t>(more.id())].empty());
  g.add_output("y", more);
  g.replace_uses(twice.id(), a.id());
  EXPECT_EQ(g.nodes()[1].inputs, (std::vector<ValueId>{a.id(), a.id()}));
  g.replace_uses(more.id(), unused.id());
  EXPECT_EQ(g.find_output("y"), unused.id());
}

TEST(Graph, DeadNodesGoAndEffectsStay) {
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput), state = g.add_input("s", f32({2}), ValueRole::kState);
  const Value kept = sum(g, a, a);
  sum(g, sum(g, a, kept), a);  // a chain that nothing reads
  const Value step = sum(g, kept, kept);
  g.add_node(kUpdate, nullptr, {state.id(), step.id()});
  g.add_node(kReport, nullptr, {sum(g, a, a).id()});
  EXPECT_EQ(g.remove_dead_nodes(), 2);
  ASSERT_EQ(g.nodes().size(), 5u);
  EXPECT_EQ(g.remove_dead_nodes(), 0);
  verify(g);
}

TEST(Verify, RefusesWhatIsReadBeforeItIsMade) {
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput);
  sum(g, sum(g, a, a), a);
  verify(g);
  std::swap(g.nodes()[0], g.nodes()[1]);
  EXPECT_TRUE(says(message_of([&] { verify(g); }), {"node 0", "before it is made"}));
}

TEST(Verify, RefusesAViewOfAnOverwrittenState) {
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput), state = g.add_input("s", f32({2}), ValueRole::kState);
  const Value view = flatten(g, state);
  g.add_node(kUpdate, nullptr, {state.id(), a.id()});
  verify(g);
  sum(g, view, a);  // the view's memory holds the new value
  EXPECT_TRUE(says(message_of([&] { verify(g); }), {"test_sum", "old value"}));
}

TEST(Verify, OnlyPersistentValuesAreUpdated) {
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput);
  g.add_node(kUpdate, nullptr, {a.id(), a.id()});
  EXPECT_TRUE(says(message_of([&] { verify(g); }), {"test_update", "no parameter, buffer or state"}));
}

TEST(Registry, NamesAreUnique) {
  register_once();
  EXPECT_EQ(&find_op("test_sum"), &kSum);
  EXPECT_EQ(find_op_or_null("test_product"), nullptr);
  const std::array<const OpDef*, 1> again{&kSum};
  EXPECT_TRUE(says(message_of([&] { register_ops(again); }), {"test_sum"}));
  EXPECT_TRUE(says(message_of([] { find_op("test_product"); }), {"test_product"}));
}

TEST(Text, ReadsBackWhatItPrints) {
  register_once();
  Graph g;
  const PathScope scope(g, "stem");
  const Value a = g.add_input("a", f32({2, 3}), ValueRole::kInput), state = g.add_input("s", f32({6}), ValueRole::kState);
  g.set_phase(Phase::kUpdate);
  g.add_node(kUpdate, nullptr, {state.id(), flatten(g, a).id()});
  g.add_output("y", a);
  const Graph again = parse_graph(print(g));
  EXPECT_EQ(print(again), print(g));
  ASSERT_EQ(again.nodes().size(), 2u);
  EXPECT_EQ(again.nodes()[1].op, &kUpdate);
  EXPECT_EQ(again.nodes()[1].phase, Phase::kUpdate);
  EXPECT_EQ(again.nodes()[1].path, "stem");
  EXPECT_EQ(again.value(again.find_input("s")).role, ValueRole::kState);
}

TEST(Text, EveryCutIsRefusedOrAGraph) {
  register_once();
  Graph g;
  const Value a = g.add_input("a", f32({2}), ValueRole::kInput);
  g.add_output("y", sum(g, a, a));
  const std::string text = print(g);
  int refused = 0;
  for (size_t length = 0; length < text.size(); ++length) {
    try {
      verify(parse_graph(text.substr(0, length)));  // a text may end after any line
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput) << error.message();
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(text.size()) / 2);
}

/// Memory positions by the definitions of both orders.
int64_t contiguous_at(const Shape& s, int64_t n, int64_t c, int64_t h, int64_t w) { return ((n * s[1] + c) * s[2] + h) * s[3] + w; }
int64_t channels_last_at(const Shape& s, int64_t n, int64_t c, int64_t h, int64_t w) { return ((n * s[2] + h) * s[3] + w) * s[1] + c; }

TEST(SameBytes, AreThoseOfEveryElement) {
  int same = 0;
  for (int bits = 0; bits < 81; ++bits) {
    const Shape shape{1 + bits % 3, 1 + bits / 3 % 3, 1 + bits / 9 % 3, 1 + bits / 27};
    bool equal = true;
    for (int64_t n = 0; n < shape[0]; ++n)
      for (int64_t c = 0; c < shape[1]; ++c)
        for (int64_t h = 0; h < shape[2]; ++h)
          for (int64_t w = 0; w < shape[3]; ++w) equal &= contiguous_at(shape, n, c, h, w) == channels_last_at(shape, n, c, h, w);
    EXPECT_EQ(same_bytes(shape, MemoryFormat::contiguous(), MemoryFormat::channels_last()), equal) << shape;
    same += equal;
  }
  EXPECT_EQ(same, 33);  // one channel: 27 shapes; 1x1 pixels: 9; both: 3
}

TEST(Cost, IsEachOperandOnceByDefault) {
  Graph g;
  const Value a = g.add_input("a", f32({5, 7}), ValueRole::kInput);
  sum(g, a, a);
  flatten(g, a);
  const Cost added = cost_of(kSum, context_of(g, g.nodes()[0]));
  EXPECT_EQ(added.bytes_read, 2 * 35 * 4);
  EXPECT_EQ(added.bytes_written, 35 * 4);
  EXPECT_EQ(added.flops, 0);
  const Cost view = cost_of(kFlat, context_of(g, g.nodes()[1]));
  EXPECT_EQ(view.bytes_read + view.bytes_written, 0);
}

}  // namespace
}  // namespace galley
