// Rewrites that several back ends share (libcore/backends): afterwards the graph is well formed, and the reference, in double, computes the
// same results.

#include <gtest/gtest.h>

#include <algorithm>

#include "libcore/backends/bias_sums.h"
#include "libcore/backends/convolution_sums.h"
#include "libcore/backends/half_gradients.h"
#include "libcore/backends/joined_heads.h"
#include "libcore/backends/joined_norms.h"
#include "libcore/backends/mixed_loss.h"
#include "libcore/backends/residual_norms.h"
#include "libcore/ops/attention.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/order_updates.h"
#include "libcore/passes/plan_memory.h"
#include "libcore/passes/recompute.h"
#include "tests/backends/cpu/add_gradients.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

enum class ResidualNorm { kRms, kRows, kPlanes };
/// Two blocks of a transformer, with norms of the last dimension, or of the last two, before or after the additions.
struct ResidualBlocks {
  Graph graph;
  Value x, w, gamma, result;
  ResidualBlocks(ResidualNorm kind, bool norm_first, const Shape& shape) {
    const int64_t size = shape[-1];
    x = graph.add_input("x", f32(shape), ValueRole::kInput);
    w = graph.add_input("w", f32({size, size}), ValueRole::kParameter);
    LayerNormAttrs attrs;
    if (kind == ResidualNorm::kPlanes) attrs.dims = 2;
    gamma = graph.add_input("gamma", f32(attrs.dims == 2 ? Shape{shape[-2], size} : Shape{size}), ValueRole::kParameter);
    const auto norm = [&](Value of) { return kind == ResidualNorm::kRms ? rms_norm(of, gamma).y : layer_norm(of, gamma, {}, attrs).y; };
    Value at = x;
    for (int block = 0; block < 2; ++block)
      at = norm_first ? add(at, tanh(linear(norm(at), w, {}))) : norm(add(at, tanh(linear(at, w, {}))));
    result = norm_first ? norm(at) : at;
  }
};

// Sums are joined where norms read them, also those that later additions and the backward pass read, and gradients where residuals come
// together; also those that the backward pass computes again.
TEST(ResidualNorms, GiveTheSameStep) {
  ensure_residual_norm_operators();
  for (const ResidualNorm kind : {ResidualNorm::kRms, ResidualNorm::kRows, ResidualNorm::kPlanes}) {
    for (const bool norm_first : {false, true}) {
      for (const bool again : {false, true}) {
        ResidualBlocks blocks(kind, norm_first, kind == ResidualNorm::kPlanes ? Shape{2, 3, 8} : Shape{3, 8});
        Graph& graph = blocks.graph;
        add_gradients(graph, blocks.result, {blocks.x.id(), blocks.w.id(), blocks.gamma.id()});
        const auto feeds = feeds_for(graph);
        const auto expected = results(graph, feeds);
        if (again) recompute(graph, recompute_selective());
        Graph changed = graph;
        EXPECT_TRUE(use_residual_norms(changed, kNoKernel).done.empty());
        EXPECT_EQ(print(changed), print(graph));
        use_residual_norms(changed, kAnyKernel);
        verify(changed);
        const std::string_view before = kind == ResidualNorm::kRms ? "add_rms_norm" : "add_layer_norm",
                               after = kind == ResidualNorm::kRms ? "rms_norm_backward_add" : "layer_norm_backward_add";
        EXPECT_EQ(count(changed, before), again ? 4 : 2);
        EXPECT_EQ(count(changed, after), norm_first ? 2 : 0);  // else the gradients of the result come together
        expect_same(results(changed, feeds), expected);
      }
    }
  }
}

// As additions do, norms put the sum into the memory of what they add.
TEST(ResidualNorms, TakeNoMoreMemoryThanAdditions) {
  ensure_residual_norm_operators();
  for (const ResidualNorm kind : {ResidualNorm::kRms, ResidualNorm::kRows}) {
    for (const bool training : {false, true}) {
      ResidualBlocks blocks(kind, true, {16, 64});
      blocks.graph.add_output("result", blocks.result);
      if (training) add_gradients(blocks.graph, blocks.result, {blocks.x.id(), blocks.w.id(), blocks.gamma.id()});
      Graph changed = blocks.graph;
      use_residual_norms(changed, kAnyKernel);
      const MemoryPlan before = plan_memory(blocks.graph, {}), after = plan_memory(changed, {});
      EXPECT_EQ(find_overlap(changed, after, {}), "");
      EXPECT_LE(after.arena_bytes, before.arena_bytes);
    }
  }
}

// Two blocks of a transformer. The gradients of the biases of layers before gelu, and before the sums that norms read, are made with the
// gradients of gelu and of norms: with a norm first those of both layers of a block, with a norm last also, as that reads the sum.
TEST(BiasSums, GiveTheSameStep) {
  ensure_residual_norm_operators();
  ensure_bias_sum_operators();
  for (const bool norm_first : {false, true}) {
    Graph graph;
    const Value x = graph.add_input("x", f32({2, 3, 8}), ValueRole::kInput), w = graph.add_input("w", f32({8, 8}), ValueRole::kParameter);
    const Value gamma = graph.add_input("gamma", f32({8}), ValueRole::kParameter);
    std::vector<ValueId> parameters{w.id(), gamma.id()};
    const auto layer = [&](Value of) {
      const Value bias = graph.add_input(cat("b", parameters.size()), f32({8}), ValueRole::kParameter);
      parameters.push_back(bias.id());
      return linear(of, w, bias);
    };
    const auto norm = [&](Value of) { return layer_norm(of, gamma, {}).y; };
    Value at = x;
    for (int block = 0; block < 2; ++block) at = norm_first ? add(at, layer(gelu(layer(norm(at))))) : norm(add(at, layer(gelu(layer(at)))));
    add_gradients(graph, norm_first ? norm(at) : at, parameters);
    use_residual_norms(graph, kAnyKernel);
    Graph changed = graph;
    EXPECT_TRUE(use_bias_sums(changed, kNoKernel).done.empty());
    EXPECT_EQ(print(changed), print(graph));
    EXPECT_EQ(count(changed, "sum"), 5);
    use_bias_sums(changed, kAnyKernel);
    verify(changed);
    EXPECT_EQ(count(changed, "gelu_backward_sums"), 2);
    EXPECT_EQ(count(changed, "layer_norm_backward_sums"), 2);
    EXPECT_EQ(count(changed, "sum"), 0);  // nothing reads that of the loss
    const auto feeds = feeds_for(graph);
    expect_same(results(changed, feeds), results(graph, feeds));
  }
}

// Sums stay that are of other dimensions, of a norm of two dimensions, of a gradient that a chain makes, or of what another node makes.
TEST(BiasSums, LeaveOthers) {
  ensure_bias_sum_operators();
  Graph graph;
  const Value x = graph.add_input("x", f32({4, 3, 8}), ValueRole::kInput),
              grad = graph.add_input("grad", f32({4, 3, 8}), ValueRole::kInput);
  const Value mean = graph.add_input("mean", f32({4}), ValueRole::kInput);
  LayerNormBackwardAttrs two;
  two.dims = 2;
  const Value of_two = layer_norm_backward(grad, x, mean, mean, {}, two)[0], of_gelu = gelu_backward(grad, x);
  const Value of_chain = gelu_backward(tanh(grad), x), folded = reshape(gelu_backward(grad, tanh(x)), {6, 16});
  ReduceAttrs kept;
  kept.axes = {0, 1};
  kept.keepdim = true;
  const Value sums[] = {sum(of_two, {0, 1}),   sum(of_gelu, {0}), sum(of_gelu, {1, 2}),   emit("sum", {of_gelu}, kept),
                        sum(of_chain, {0, 1}), sum(folded, {0}),  sum(tanh(grad), {0, 1})};
  for (size_t i = 0; i < std::size(sums); ++i) graph.add_output(cat("sum", i), sums[i]);
  const std::string before = print(graph);
  EXPECT_TRUE(use_bias_sums(graph, kAnyKernel).done.empty());
  EXPECT_EQ(print(graph), before);
  graph.add_output("taken", sum(of_gelu, {0, 1}));
  EXPECT_EQ(use_bias_sums(graph, kAnyKernel).done.size(), 1u);
}

// A residual block: the norm takes both gradients of its result.
TEST(ResidualNorms, BatchNormsAddGradients) {
  ensure_residual_norm_operators();
  Graph graph;
  const Value x = graph.add_input("x", f32({2, 4, 3, 3}), ValueRole::kInput),
              w = graph.add_input("w", f32({4, 4, 1, 1}), ValueRole::kParameter);
  Value at = x;
  for (int block = 0; block < 2; ++block) {
    BatchNormAttrs norm;
    norm.activation = Activation::kRelu;
    at = batch_norm(conv2d(at, w, {}, {}), {}, {}, norm, at).y;
  }
  add_gradients(graph, at, {x.id(), w.id()});
  Graph changed = graph;
  EXPECT_TRUE(use_residual_norms(changed, kNoKernel).done.empty());
  use_residual_norms(changed, kAnyKernel);
  verify(changed);
  EXPECT_EQ(count(changed, "add_batch_norm_backward"), 2);  // the loss reads the result of the last one twice
  const auto feeds = feeds_for(graph);
  expect_same(results(changed, feeds), results(graph, feeds));
}

// Norms take their statistics from the convolution before them; one after a bias, or of a value that another operator made, does not.
TEST(ConvolutionSums, GiveTheSameStep) {
  ensure_convolution_sum_operators();
  Graph graph;
  const Value x = graph.add_input("x", f32({2, 4, 5, 3}), ValueRole::kInput),
              w = graph.add_input("w", f32({4, 4, 3, 3}), ValueRole::kParameter), b = graph.add_input("b", f32({4}), ValueRole::kParameter);
  Conv2dAttrs window;
  window.padding = {1};
  BatchNormAttrs relu;
  relu.activation = Activation::kRelu;
  Value at = batch_norm(conv2d(x, w, {}, window), b, {}, relu).y;
  at = batch_norm(conv2d(at, w, b, window), {}, {}).y;
  at = batch_norm(tanh(conv2d(at, w, {}, window)), {}, b, {}, x).y;
  const Value twice = conv2d(at, w, {}, window);
  at = add(batch_norm(twice, {}, b, relu, x).y, batch_norm(twice, b, {}).y);
  add_gradients(graph, at, {x.id(), w.id(), b.id()});
  const auto feeds = feeds_for(graph);
  const auto expected = results(graph, feeds);
  // The backward pass may compute norms again, from the same sums, or convolutions too, with sums of their own.
  const auto with_convolutions = [](const Node& node) { return node.is("conv2d") || recompute_selective()(node); };
  const std::tuple<RecomputeChoice, int, int> choices[] = {{{}, 2, 3}, {recompute_selective(), 2, 6}, {with_convolutions, 4, 6}};
  for (const auto& [choice, convolutions, norms] : choices) {
    Graph trained = graph;
    if (choice) recompute(trained, choice);
    Graph changed = trained;
    EXPECT_TRUE(use_convolution_sums(changed, kNoKernel).done.empty());
    EXPECT_EQ(print(changed), print(trained));
    EXPECT_EQ(use_convolution_sums(changed, kAnyKernel).done.size(), static_cast<size_t>(convolutions));
    verify(changed);
    EXPECT_EQ(count(changed, "conv2d_sums"), convolutions);
    EXPECT_EQ(count(changed, "batch_norm_of_sums"), norms);
    expect_same(results(changed, feeds), expected);
  }
}

// Layers of one array become one, if their weights are computed once: queries, keys and values of two key heads for four heads, under any
// mask, or keys and values alone where they are of another array or something else reads the queries. Not where the values have a layer of
// another array, or where gradients are computed.
TEST(JoinedHeads, AreOfOneProduct) {
  enum Kind { kOwn, kMasked, kCross, kReadTwice, kParameters, kOtherValues, kTraining };
  for (const Kind kind : {kOwn, kMasked, kCross, kReadTwice, kParameters, kOtherValues, kTraining}) {
    Graph graph;
    const Value x = graph.add_input("x", f32({2, 3, 8}), ValueRole::kInput),
                memory = graph.add_input("memory", f32({2, 3, 8}), ValueRole::kInput);
    std::vector<ValueId> parameters;
    const auto heads = [&](Value of, int64_t count) {
      Value w = graph.add_input(cat("w", parameters.size()), f32({count * 2, 8}), ValueRole::kParameter);
      const Value b = graph.add_input(cat("b", parameters.size()), f32({count * 2}), ValueRole::kParameter);
      parameters.push_back(w.id());
      if (kind != kParameters) w = cast(affine(w, 2), DType::kF32);
      return reshape(linear(of, w, b), {2, 3, count, 2});
    };
    AttentionInputs inputs{.q = heads(x, 4), .k = heads(kind == kCross ? memory : x, 2)};
    inputs.v = heads(kind == kCross || kind == kOtherValues ? memory : x, 2);
    if (kind == kReadTwice) graph.add_output("read", tanh(inputs.q));
    AttentionAttrs attrs;
    if (kind == kMasked) {
      inputs.bias = graph.add_input("bias", f32({1, 4, 3, 3}), ValueRole::kInput);
      inputs.lengths = graph.add_input("lengths", i64({2}), ValueRole::kInput);
      attrs.causal = true;
    }
    const Value result = attention(inputs, attrs).o;
    graph.add_output("result", result);
    if (kind == kTraining) add_gradients(graph, result, parameters);
    Graph changed = graph;
    EXPECT_TRUE(join_heads(changed, kNoKernel).done.empty());
    EXPECT_EQ(print(changed), print(graph));
    join_heads(changed, kAnyKernel);
    verify(changed);
    const bool with_queries = kind == kOwn || kind == kMasked;
    EXPECT_EQ(count(changed, "linear"), with_queries ? 1 : kind == kCross || kind == kReadTwice ? 2 : 3) << kind;
    EXPECT_EQ(count(changed, "attention"), 1);
    const auto joined = std::find_if(changed.nodes().begin(), changed.nodes().end(), [](const Node& node) { return node.is("attention"); });
    EXPECT_EQ(joined->attrs<AttentionAttrs>().kv_heads, with_queries ? 2 : 0) << kind;
    auto feeds = feeds_for(graph);
    if (kind == kMasked) feeds.at("lengths").v = {3, 2};
    expect_same(results(changed, feeds), results(graph, feeds));
  }
}

// Where nothing else reads the gradient in f32, it is made in the dtype of the logits; casts that nothing reads go.
TEST(MixedLosses, ReadLogitsBeforeTheirCast) {
  for (const bool read : {false, true}) {
    Graph graph;
    const Value x = graph.add_input("x", f32({4, 6}), ValueRole::kInput);
    const Value logits = cast(affine(cast(x, DType::kBF16), 2), DType::kF32);
    const Value t = graph.add_input("label", {.dtype = DType::kI64, .shape = {4}}, ValueRole::kInput);
    const Value loss = cross_entropy(logits, t);
    graph.add_output("loss", loss);
    graph.add_output("dx", differentiate(graph, loss.id(), std::vector<ValueId>{x.id()}).at(x.id()));
    for (const Node& node : graph.nodes())
      if (read && node.is("cross_entropy_backward")) graph.add_output("gradient", node.outputs[0]);
    Graph changed = graph;
    EXPECT_TRUE(use_mixed_losses(changed, kNoKernel).done.empty());
    EXPECT_EQ(print(changed), print(graph));
    EXPECT_EQ(use_mixed_losses(changed, kAnyKernel).done.size(), read ? 1u : 2u);
    verify(changed);
    EXPECT_EQ(count(changed, "mixed_cross_entropy"), 1);
    EXPECT_EQ(count(changed, "mixed_cross_entropy_backward"), read ? 0 : 1);
    EXPECT_EQ(count(changed, "cast"), count(graph, "cast") - (read ? 0 : 2));
    const auto feeds = feeds_for(graph);
    expect_same(results(changed, feeds), results(graph, feeds));
  }
}

// Updates and norms read gradients before their cast, which stays where something else reads it.
TEST(HalfGradients, AreReadBeforeTheirCast) {
  Graph graph;
  TensorType half = f32({5, 3});
  half.dtype = DType::kBF16;
  const Value lr = graph.add_input("lr", f32({}), ValueRole::kInput);
  const Value step = graph.add_input("step", {.dtype = DType::kI64, .shape = {}}, ValueRole::kInput);
  std::vector<Value> gradients;
  for (const char* name : {"a", "b"}) gradients.push_back(cast(graph.add_input(name, half, ValueRole::kInput), DType::kF32));
  graph.add_output("norm", sum_squares(gradients));
  graph.add_output("read", gradients[1]);
  const auto parameter = [&](const std::string& name) { return graph.add_input(name, f32({5, 3}), ValueRole::kParameter); };
  sgd_update(parameter("p"), gradients[0], lr, step, {}, {}, {});
  adam_update(parameter("q"), gradients[1], lr, step, graph.add_input("m", f32({5, 3}), ValueRole::kState),
              graph.add_input("v", f32({5, 3}), ValueRole::kState), {}, {});
  Graph changed = graph;
  EXPECT_TRUE(use_half_gradients(changed, kNoKernel).done.empty());
  EXPECT_EQ(print(changed), print(graph));
  EXPECT_EQ(use_half_gradients(changed, kAnyKernel).done.size(), 3u);
  verify(changed);
  EXPECT_EQ(count(changed, "cast"), 1);
  const auto feeds = feeds_for(graph);
  expect_same(results(changed, feeds), results(graph, feeds));
}

TEST(JoinedNorms, AreOfArraysOfSoManyBytes) {
  Graph graph;
  Value total;
  for (int i = 0; i < 7; ++i) {
    const Value x = affine(graph.add_input(cat("x", i), f32({4, 2}), ValueRole::kInput), 2);
    const Value part = sum_squares(std::span<const Value>(&x, 1));
    total = total ? add(total, part) : part;
  }
  graph.add_output("norm", total);
  Graph same = graph;
  EXPECT_TRUE(join_norms(same, kNoKernel, 1000).done.empty());
  EXPECT_EQ(print(same), print(graph));
  for (const auto& [bytes, nodes] : {std::pair(31, 7), {32, 7}, {64, 4}, {96, 3}, {1000, 1}}) {
    Graph changed = graph;
    join_norms(changed, kAnyKernel, bytes);
    verify(changed);
    EXPECT_EQ(count(changed, "sum_squares"), nodes) << bytes;
    EXPECT_EQ(count(changed, "add"), nodes - 1) << bytes;
    const auto feeds = feeds_for(graph);
    expect_same(results(changed, feeds), results(graph, feeds));
  }
}

}  // namespace
}  // namespace galley::test
