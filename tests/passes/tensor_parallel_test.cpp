// tensor_parallel: layers are divided by rows, then by columns; without its collectives it is the graph of one rank.

#include "libcore/passes/tensor_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/check_placements.h"
#include "libcore/passes/differentiate.h"

namespace galley {
namespace {

constexpr int64_t kBatch = 2, kTokens = 6, kWidth = 24, kHeads = 4, kWords = 30;

/// A block of a decoder between a table of tokens and a head that shares it.
Graph decoder(int64_t heads = kHeads) {
  Graph graph;
  const auto parameter = [&](const std::string& name, Shape shape) {
    return graph.add_input(name, {.shape = std::move(shape)}, ValueRole::kParameter);
  };
  const Value tokens = graph.add_input("tokens", {.dtype = DType::kI64, .shape = {kBatch, kTokens}}, ValueRole::kInput);
  const Value table = parameter("table", {kWords, kWidth});
  Value x = embedding(table, tokens);
  const Value normed = layer_norm(x, parameter("ln.weight", {kWidth}), parameter("ln.bias", {kWidth})).y;
  const Value qkv = linear(normed, parameter("qkv.weight", {3 * kWidth, kWidth}), parameter("qkv.bias", {3 * kWidth}));
  AttentionAttrs causal;
  causal.causal = true;
  const Value mixed = attention({.q = reshape(qkv, {kBatch, kTokens, 3 * heads, kWidth / heads})}, causal).o;
  x = add(x, linear(reshape(mixed, {kBatch, kTokens, kWidth}), parameter("o.weight", {kWidth, kWidth}), parameter("o.bias", {kWidth})));
  const Value inner = gelu(linear(x, parameter("up.weight", {4 * kWidth, kWidth}), parameter("up.bias", {4 * kWidth})));
  x = add(x, linear(inner, parameter("down.weight", {kWidth, 4 * kWidth}), parameter("down.bias", {kWidth})));
  graph.add_output("loss", mean(square(linear(x, table))));
  return graph;
}

std::vector<std::string> operators(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) names.emplace_back(node.op->name);
  return names;
}

int64_t count_nodes(const Graph& graph, const OpDef& op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.op == &op; });
}

TEST(TensorParallel, DividesRowsThenColumns) {
  Graph graph = decoder();
  const TensorDivisions divisions = tensor_divisions(graph, 2);
  std::vector<std::string> names;
  for (const auto& [name, division] : divisions) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"down.weight", "o.weight", "qkv.bias", "qkv.weight", "table", "up.bias", "up.weight"}));
  const TensorPlacements placements = tensor_parallel(graph, divisions, {.rank = 1, .ranks = 2});
  verify(graph);
  const auto shape = [&](const char* name) { return graph.type(graph.find_input(name)).shape; };
  EXPECT_EQ(shape("qkv.weight"), (Shape{36, kWidth}));
  EXPECT_EQ(shape("qkv.bias"), (Shape{36}));
  EXPECT_EQ(shape("o.weight"), (Shape{kWidth, 12}));
  EXPECT_EQ(shape("o.bias"), (Shape{kWidth}));
  EXPECT_EQ(shape("up.weight"), (Shape{48, kWidth}));
  EXPECT_EQ(shape("down.weight"), (Shape{kWidth, 48}));
  EXPECT_EQ(shape("table"), (Shape{15, kWidth}));
  for (const auto& [id, division] : placements) EXPECT_EQ(graph.type(id).shape[division.dim], division.size(1, 2));
  // Looked up rows, attention and the branch are summed; the logits are gathered.
  EXPECT_EQ(count_nodes(graph, all_reduce_start_op()), 3);
  EXPECT_EQ(count_nodes(graph, all_gather_start_op()), 1);
  // What the three divided layers read has partial gradients: normed, the input of the branch, that of the head.
  EXPECT_EQ(count_nodes(graph, sum_gradient_op()), 3);
  std::vector<ValueId> wanted;
  for (const ValueId id : graph.inputs()) {
    if (graph.value(id).role == ValueRole::kParameter) wanted.push_back(id);
  }
  const auto gradients = differentiate(graph, graph.find_output("loss"), wanted);
  verify(graph);
  EXPECT_EQ(count_nodes(graph, all_reduce_start_op()), 6);
  EXPECT_EQ(count_nodes(graph, all_gather_start_op()), 1);
  for (const ValueId id : wanted) EXPECT_EQ(graph.type(gradients.at(id)).shape, graph.type(id).shape) << graph.value(id).name;
}

/// With collectives, gradient sums and the masks of looked up rows removed: the operators of one rank, in order. Biases of layers that are
/// divided by columns are added after the sum.
TEST(TensorParallel, WithoutItsConversionsItIsTheGraphOfOneRank) {
  const Graph one = decoder();
  Graph two = decoder();
  tensor_parallel(two, tensor_divisions(two, 2), {.rank = 0, .ranks = 2});
  std::vector<std::string> left;
  const std::vector<std::string> added{"all_reduce_start", "all_reduce_wait", "all_gather_start", "all_gather_wait", "sum_gradient"};
  // The parts of a looked up row, and of logits.
  const std::vector<std::string> conversions{"full", "less", "greater", "sub", "where", "cast", "mul", "permute", "pad", "slice"};
  const auto has = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& name : operators(two)) {
    if (!has(added, name) && !has(conversions, name)) left.push_back(name);
  }
  const auto without = [](std::vector<std::string> names, const char* name) {
    std::erase(names, name);
    return names;
  };
  std::vector<std::string> expected = without(operators(one), "reshape");
  // x W^T and the bias; then the residual sum.
  for (const size_t at : {5, 10}) expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(at), "add");
  EXPECT_EQ(without(left, "reshape"), expected);
}

TEST(TensorParallel, OneRankChangesNothing) {
  const Graph one = decoder();
  Graph same = decoder();
  tensor_parallel(same, {}, {.rank = 0, .ranks = 1});
  EXPECT_EQ(print(same), print(one));
}

/// Each error of a division is found: a sum that is left out, added to before it is complete, or complete before.
TEST(TensorParallel, PlacementsAreChecked) {
  const TensorParallelOptions options{.rank = 0, .ranks = 2};
  Graph graph = decoder();
  const TensorDivisions divisions = tensor_divisions(graph, 2);
  const TensorPlacements placements = tensor_parallel(graph, divisions, options);
  EXPECT_NO_THROW(check_placements(graph, divisions, placements, options));
  for (const OpDef* op : {&all_reduce_start_op(), &all_gather_start_op()}) {
    // The wait, and what reads it, get the operand of the start.
    Graph broken = graph;
    const auto start = std::find_if(broken.nodes().rbegin(), broken.nodes().rend(), [&](const Node& node) { return node.op == op; });
    const auto wait = std::find_if(broken.nodes().begin(), broken.nodes().end(), [&](const Node& node) {
      return node.op != &sum_gradient_op() && !node.inputs.empty() && node.inputs[0] == start->outputs[0];
    });
    if (op == &all_reduce_start_op()) broken.replace_uses(wait->outputs[0], start->inputs[0]);
    if (op == &all_gather_start_op()) wait->op = &all_reduce_start_op();
    EXPECT_THROW(check_placements(broken, divisions, placements, options), InternalError) << op->name;
  }
  TensorDivisions fewer = divisions;
  fewer.erase("down.weight");
  EXPECT_THROW(check_placements(graph, fewer, placements, options), InternalError);
  TensorPlacements elsewhere = placements;
  elsewhere.begin()->second.dim = 1;
  EXPECT_THROW(check_placements(graph, divisions, elsewhere, options), InternalError);
}

/// A sum of partial sums and a whole value is not what one rank computes.
TEST(TensorParallel, NothingIsAddedToASumBeforeItIsComplete) {
  Graph graph;
  const Value x = graph.add_input("x", {.shape = {3, 4}}, ValueRole::kInput);
  const Value w = graph.add_input("w", {.shape = {5, 2}}, ValueRole::kParameter),
              bias = graph.add_input("b", {.shape = {5}}, ValueRole::kParameter);
  const Value part = slice(x, 1, 0, 2);
  const TensorDivision columns{1, {{4, 1}}};
  CollectiveAttrs attrs;
  attrs.tensor = true;
  const auto build = [&](bool early) {
    Graph made = graph;
    const Value own = made.at(part.id()), weight = made.at(w.id()), shift = made.at(bias.id());
    Value y = linear(own, weight);
    if (early) y = add(y, shift);
    y = all_reduce_wait(all_reduce_start(y, attrs), attrs);
    made.add_output("y", early ? y : add(y, shift));
    return made;
  };
  const TensorPlacements placements{{part.id(), columns}, {w.id(), columns}};
  EXPECT_NO_THROW(check_placements(build(false), {{"w", columns}}, placements, {.rank = 0, .ranks = 2}));
  EXPECT_THROW(check_placements(build(true), {{"w", columns}}, placements, {.rank = 0, .ranks = 2}), InternalError);
}

TEST(TensorParallel, PartsMakeTheWhole) {
  const TensorDivision blocks{1, {{8, 4}, {4, 2}, {6, 1}}};
  EXPECT_EQ(blocks.size(), 18);
  EXPECT_EQ(blocks.size(0, 2), 4 + 2 + 3);
  Tensor whole(DType::kF32, Shape{3, 18, 2});
  std::iota(whole.data_as<float>(), whole.data_as<float>() + whole.elements(), 0.0f);
  Tensor again(DType::kF32, whole.shape());
  for (int rank = 0; rank < 2; ++rank) {
    const Tensor part = part_of(whole, blocks, rank, 2);
    EXPECT_EQ(part.shape(), (Shape{3, 9, 2}));
    place_part(again, part, blocks, rank, 2);
  }
  EXPECT_EQ(again.to_doubles(), whole.to_doubles());
  EXPECT_EQ(part_of(whole, blocks, 1, 2).data_as<float>()[0], 8);   // row 4 of the first block
  EXPECT_EQ(part_of(whole, blocks, 1, 2).data_as<float>()[8], 20);  // row 10: the second half of the second block
  const TensorDivision uneven{0, {{7, 1}}};
  EXPECT_EQ(uneven.size(0, 4), 2);
  EXPECT_EQ(uneven.size(3, 4), 1);
  EXPECT_TRUE(uneven.fits(4));
  EXPECT_FALSE((TensorDivision{0, {{5, 1}}}.fits(4)));  // 2, 2, 1, 0
}

TEST(TensorParallel, RefusesHeadsThatRanksCannotDivide) {
  try {
    tensor_divisions(decoder(), 3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("has 4 heads, which 3 ranks cannot divide equally"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace galley
