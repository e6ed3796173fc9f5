// The memory plan, checked with an independent owner map: values that are live at the same time share no byte.

#include "libcore/passes/plan_memory.h"

#include <gtest/gtest.h>

#include <random>

#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "tests/support/graphs.h"

namespace galley::test {
namespace {

/// Independent of the planner's own checker: lifetimes by brute force, every pair of memory blocks compared.
std::string overlap_by_pairs(const Graph& graph, const MemoryPlan& plan, const std::vector<int64_t>& scratch) {
  struct Span {
    int first, last;
    int64_t begin, end;
    std::string name;
  };
  std::vector<int> made(graph.value_count(), -1), last(graph.value_count(), -1);
  const auto& nodes = graph.nodes();
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (ValueId id : nodes[n].outputs) made[static_cast<size_t>(id)] = last[static_cast<size_t>(id)] = static_cast<int>(n);
    for (ValueId id : nodes[n].inputs) {
      if (id != kNoValue) last[static_cast<size_t>(id)] = static_cast<int>(n);
    }
  }
  for (const auto& [name, id] : graph.outputs()) last[static_cast<size_t>(id)] = static_cast<int>(nodes.size());
  // A view keeps its source alive.
  for (size_t n = nodes.size(); n-- > 0;) {
    if (!is_view(graph, nodes[n])) continue;
    int& source = last[static_cast<size_t>(nodes[n].inputs[0])];
    source = std::max(source, last[static_cast<size_t>(nodes[n].outputs[0])]);
  }
  std::vector<Span> spans;
  for (size_t v = 0; v < graph.value_count(); ++v) {
    const MemorySlot& p = plan.values[v];
    if (p.region != MemorySlot::Region::kArena || made[v] < 0 || p.bytes == 0) continue;
    if (is_view(graph, nodes[static_cast<size_t>(made[v])])) continue;
    spans.push_back({made[v], last[v], p.offset, p.offset + p.bytes, cat("%", v)});
    EXPECT_EQ(p.offset % 64, 0);
    EXPECT_LE(p.offset + p.bytes + plan.guard, plan.arena_bytes);
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (scratch.empty() || scratch[n] == 0) continue;
    spans.push_back(
        {static_cast<int>(n), static_cast<int>(n), plan.scratch_offsets[n], plan.scratch_offsets[n] + scratch[n], cat("scratch of ", n)});
  }
  for (size_t a = 0; a < spans.size(); ++a) {
    for (size_t b = a + 1; b < spans.size(); ++b) {
      const Span &x = spans[a].first <= spans[b].first ? spans[a] : spans[b], &y = &x == &spans[a] ? spans[b] : spans[a];
      if (y.first > x.last || y.begin >= x.end || x.begin >= y.end) continue;
      // In place: the last reader of x computes y, and its operator allows it.
      bool allowed = false;
      const Node& node = nodes[static_cast<size_t>(y.first)];
      if (y.first == x.last && x.first < y.first && x.begin == y.begin && x.end == y.end) allowed = !node.op->may_reuse.empty();
      if (!allowed) return cat(x.name, " and ", y.name, " overlap");
    }
  }
  return "";
}

/// Element-wise nodes, views and sums over random earlier values; some are outputs.
Graph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  Graph g;
  std::vector<Value> values{g.add_input("x", f32({4, 8}), ValueRole::kInput), g.add_input("w", f32({4, 8}), ValueRole::kParameter)};
  const auto pick = [&] { return values[random() % values.size()]; };
  for (int n = 0; n < 40; ++n) {
    const Value a = pick();
    switch (random() % 6) {
      case 0: values.push_back(relu(a)); break;
      case 1: values.push_back(add(reshape(a, {32}), reshape(pick(), {32}))); break;
      case 2: values.push_back(reshape(a, {8, 4})); break;
      case 3:
        values.push_back(concat({reshape(a, {1, 32}), reshape(pick(), {1, 32})}, 0));
        values.push_back(slice(values.back(), 0, 1));
        values.back() = reshape(values.back(), {4, 8});
        values.erase(values.end() - 2);
        break;
      case 4: values.push_back(mul(a, a)); break;
      default: values.push_back(exp(neg(a))); break;
    }
    if (random() % 10 == 0) g.add_output(cat("y", n), values.back());
  }
  g.add_output("last", values.back());
  g.remove_dead_nodes();
  return g;
}

TEST(PlanMemory, NeverOverlapsOnRandomGraphs) {
  int in_place = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph g = random_graph(seed);
    std::mt19937_64 random(seed);
    std::vector<int64_t> scratch;
    for (size_t n = 0; n < g.nodes().size(); ++n) scratch.push_back(random() % 4 == 0 ? static_cast<int64_t>(random() % 1000) : 0);
    const MemoryPlan plan = plan_memory(g, scratch, seed % 2 == 0 ? 0 : 32);
    ASSERT_EQ(overlap_by_pairs(g, plan, scratch), "") << "seed " << seed;
    ASSERT_EQ(find_overlap(g, plan, scratch), "") << "seed " << seed;
    in_place += plan.in_place;
  }
  EXPECT_GT(in_place, 100) << "the test must exercise reuse in place";
}

TEST(PlanMemory, CheckersSeeAnOverlap) {
  Graph g;
  const Value x = g.add_input("x", f32({64}), ValueRole::kInput);
  const Value a = exp(x), b = sin(x);
  g.add_output("y", concat({a, b}, 0));
  MemoryPlan plan = plan_memory(g, {});
  EXPECT_EQ(overlap_by_pairs(g, plan, {}), "");
  plan.values[static_cast<size_t>(b.id())].offset = plan.values[static_cast<size_t>(a.id())].offset;
  EXPECT_NE(overlap_by_pairs(g, plan, {}), "");
  EXPECT_NE(find_overlap(g, plan, {}), "");
}

TEST(PlanMemory, ChainsRunInPlaceAndUpdatesInTheirState) {
  Graph g;
  const Value x = g.add_input("x", f32({1000}), ValueRole::kInput), w = g.add_input("w", f32({1000}), ValueRole::kParameter);
  const Value lr = g.add_input("lr", f32(Shape{}), ValueRole::kInput), step = g.add_input("step", i64(Shape{}), ValueRole::kInput);
  Value y = exp(x);
  for (int i = 0; i < 5; ++i) y = relu(neg(y));
  const auto updated = sgd_update(w, y, lr, step, Value(), Value(), {});
  const MemoryPlan plan = plan_memory(g, {});
  EXPECT_EQ(plan.in_place, 10);
  EXPECT_EQ(plan.arena_bytes, 4032) << "one value of 4000 bytes, rounded to 64";
  EXPECT_EQ(plan.values[static_cast<size_t>(updated[0].id())].region, MemorySlot::Region::kNamed);
  EXPECT_EQ(plan.values[static_cast<size_t>(updated[0].id())].named, w.id());
  EXPECT_EQ(plan.named_bytes, 4000 * 2 + 4 + 8);
}

TEST(PlanMemory, AnOperandOfAnotherOrderKeepsItsMemory) {
  for (const bool contiguous : {true, false}) {
    Graph g;
    const Value x = g.add_input("x", f32({1, 4, 3, 5}), ValueRole::kInput), plane = g.add_input("plane", f32({4, 3, 5}), ValueRole::kInput);
    const Value image = reorder(x, contiguous ? MemoryFormat::contiguous() : MemoryFormat::channels_last());
    const Value shift = exp(plane), y = add(image, shift);
    g.add_output("image", image);
    g.add_output("y", y);
    EXPECT_EQ(y.type().format, image.type().format);
    EXPECT_EQ(plan_memory(g, {}).in_place, contiguous ? 1 : 0) << "the sum is written while the plane is read by strides";
  }
}

// The largest array of a language model is its logits: their gradient takes their place, unless something still reads them.
TEST(PlanMemory, TheGradientOfLogitsTakesTheirPlace) {
  enum class Case { kPlain, kLogitsAreRead, kTargetsViewThem };
  for (const Case what : {Case::kPlain, Case::kLogitsAreRead, Case::kTargetsViewThem}) {
    Graph g;
    const Value x = g.add_input("x", f32({4, 5}), ValueRole::kInput);
    const Value logits = neg(x), classes = g.add_input("target", {.dtype = DType::kI64, .shape = {4}}, ValueRole::kInput);
    const Value target = what == Case::kTargetsViewThem ? reshape(reshape(logits, {20}), {4, 5}) : classes;
    const Value one = g.add_input("grad", f32({}), ValueRole::kInput);
    const Value gradient = cross_entropy_backward(one, logits, target, Value(), {});
    g.add_output("d", neg(gradient));
    if (what == Case::kLogitsAreRead) g.add_output("l", logits);
    const MemoryPlan plan = plan_memory(g, {});
    const auto offset = [&](Value v) { return plan.values[static_cast<size_t>(v.id())].offset; };
    EXPECT_EQ(offset(gradient) == offset(logits), what == Case::kPlain) << static_cast<int>(what);
    EXPECT_EQ(overlap_by_pairs(g, plan, {}), "");
  }
}

TEST(PlanMemory, WhatPrepareMakesHasItsOwnRegion) {
  Graph g;
  const Value w = g.add_input("w", f32({1000}), ValueRole::kParameter), x = g.add_input("x", f32({1000}), ValueRole::kInput);
  const Value temporary = exp(w), kept = sin(temporary);
  const Value y = neg(kept);  // may not take the memory of `kept`: the next run reads it again
  g.add_output("y", mul(y, x));
  const MemoryPlan plan = plan_memory(g, {}, 0, 2);
  EXPECT_EQ(plan.values[static_cast<size_t>(kept.id())].region, MemorySlot::Region::kPrepared);
  EXPECT_EQ(plan.values[static_cast<size_t>(y.id())].region, MemorySlot::Region::kArena);
  EXPECT_EQ(plan.prepared_bytes, 4032);
}

/// Gathered arrays that ranks have in common have memory of their own, which other nodes do not write; parts are kept until the wait.
TEST(PlanMemory, CommonGathersHaveTheirOwnMemory) {
  Graph g;
  const auto flat = [](int64_t n) { return TensorType{.dtype = DType::kF32, .shape = {n}}; };
  SegmentAttrs attrs;
  attrs.ranks = 2;
  attrs.common = true;
  const Value part = relu(g.add_input("part", flat(1024), ValueRole::kInput));
  const Value started = all_gather_start(part, attrs);
  const Value between = relu(g.add_input("x", flat(1024), ValueRole::kInput));
  const Value whole = all_gather_wait(started, attrs);
  const Value result = relu(whole);  // in place, if the memory were not common
  g.add_output("y", result);
  g.add_output("between", between);
  const MemoryPlan plan = plan_memory(g, {});
  const auto slot = [&](Value value) { return plan.values[static_cast<size_t>(value.id())]; };
  EXPECT_EQ(slot(started).region, MemorySlot::Region::kCommon);
  EXPECT_EQ(slot(whole).region, MemorySlot::Region::kCommon);
  EXPECT_EQ(slot(whole).offset, slot(started).offset);
  EXPECT_EQ(slot(result).region, MemorySlot::Region::kArena);
  EXPECT_EQ(plan.common_bytes, 2 * 1024 * 4);
  EXPECT_NE(slot(between).offset, slot(part).offset) << "the part is read until the wait";
}

}  // namespace
}  // namespace galley::test
