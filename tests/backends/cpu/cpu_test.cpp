// Properties that the harness of operators does not cover: bit-identical repeats, large means, odd channel counts, and a known defect of
// oneDNN.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "libcore/backends/ref/ref.h"
#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"

namespace galley {
namespace {

using test::cpu;

/// Runs the fastest kernel of a graph's last node on these inputs (in the node's order).
std::vector<Tensor> run_last(const Graph& graph, const std::vector<Tensor>& inputs, int threads) {
  set_compute_threads(threads);
  const Node& node = graph.nodes().back();
  const KernelQuery query{node, context_of(graph, node), threads};
  const KernelChoice choice = test::cpu().choose(query);
  EXPECT_NE(choice.kernel, nullptr);
  EXPECT_FALSE(choice.kernel->reference);
  const auto kernel = choice.kernel->prepare(query);
  std::vector<Tensor> outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& tensor : inputs) in.push_back(tensor.defined() ? tensor.data() : nullptr);
  for (const ValueId id : node.outputs) outputs.emplace_back(graph.type(id).dtype, graph.type(id).shape, graph.type(id).format);
  for (Tensor& tensor : outputs) {
    std::memset(tensor.data(), 0xFF,
                static_cast<size_t>(tensor.bytes()));  // NaN, so that unwritten elements are detected, also in the padding
    out.push_back(tensor.data());
  }
  const auto scratch = Storage::allocate(std::max<int64_t>(64, kernel->scratch_bytes()));
  kernel->run(host_stream(), {in, out, scratch->data()});
  return outputs;
}

/// Values around `mean` by a fixed sequence: sin of multiples of an irrational number, spread 1.
Tensor spread(const Shape& shape, double mean, double seed) {
  Tensor tensor(DType::kF32, shape, MemoryFormat::channels_last());
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = mean + std::sqrt(2.0) * std::sin(seed + 1.618033988749895 * static_cast<double>(i * i % 10007));
  tensor.from_doubles(values);
  return tensor;
}

TensorType images(const Shape& shape) { return {DType::kF32, shape, MemoryFormat::channels_last()}; }

// A weight in a format without a name would be reordered in each run, which takes as long as the products at batch 1.
TEST(Weights, TheLibrarysFormatHasANameInEachType) {
  ensure_ops_registered();
  int tried = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t side : {1, 3}) {
      Graph graph;
      Conv2dAttrs attrs;
      attrs.padding = {side / 2};
      const Value x = graph.add_input("x", {dtype, {1, 64, 14, 14}, MemoryFormat::channels_last()}, ValueRole::kInput);
      conv2d(x, graph.add_input("w", {dtype, {128, 64, side, side}}, ValueRole::kParameter), {}, attrs);
      const Node& node = graph.nodes().back();
      const KernelQuery query{node, context_of(graph, node), 1};
      for (const Kernel* kernel : test::cpu().kernels(find_op("conv2d"))) {
        if (kernel->preferred_format == nullptr || !kernel->supports(query)) continue;  // not every processor supports bf16
        EXPECT_TRUE(kernel->preferred_format(query, 1).is_blocked()) << kernel->algorithm << ", " << dtype << ", a window of " << side;
        ++tried;
      }
    }
  }
  EXPECT_GE(tried, 2);
}

TEST(CpuBatchNorm, LargeMeansKeepTheirVariance) {
  const Shape shape{16, 13, 9, 9};
  Graph graph;
  const Value x = graph.add_input("x", images(shape), ValueRole::kInput);
  batch_norm(x, {}, {});
  const Tensor data = spread(shape, 1e4, 0.5);
  const auto outputs = run_last(graph, {data, {}, {}}, 2);
  const std::vector<double> values = data.to_doubles();
  for (int64_t c = 0; c < 13; ++c) {
    double mean = 0, var = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t n = 0; n < 16; ++n) {
        for (int64_t i = 0; i < 81; ++i) {
          const double v = values[static_cast<size_t>((n * 13 + c) * 81 + i)];
          (pass == 0 ? mean : var) += (pass == 0 ? v : (v - mean) * (v - mean)) / (16 * 81);
        }
      }
    }
    // Inputs near 1e4 are exact floats here, so only the sums of a block round: 1e-5 of a variance near 1.
    const double error = std::fabs(outputs[2].at({c}) - var) / var;
    EXPECT_TRUE(error <= 1e-5) << "channel " << c << ": " << outputs[2].at({c}) << " against " << var;
    EXPECT_TRUE(std::fabs(outputs[1].at({c}) - mean) <= 1e4 * 6e-8) << "channel " << c;
  }
}

TEST(CpuBatchNorm, ReluLetsNanThrough) {
  const Shape shape{2, 3, 2, 2};
  Graph graph;
  const Value x = graph.add_input("x", images(shape), ValueRole::kInput);
  BatchNormAttrs attrs;
  attrs.activation = Activation::kRelu;
  batch_norm(x, {}, {}, attrs);
  Tensor data = spread(shape, 0, 0.1);
  data.set({0, 1, 0, 0}, std::nan(""));
  const auto outputs = run_last(graph, {data, {}, {}}, 2);
  EXPECT_TRUE(std::isnan(outputs[0].at({1, 1, 1, 1})));
  EXPECT_FALSE(std::isnan(outputs[0].at({1, 0, 1, 1})));
}

TEST(CpuBatchNorm, RepeatsItsBits) {
  const Shape shape{8, 19, 17, 11};
  for (const int threads : {1, 2, 3}) {
    Graph graph;
    const Value x = graph.add_input("x", images(shape), ValueRole::kInput);
    batch_norm(x, {}, {});
    const Tensor data = spread(shape, 3, 0.2);
    const auto first = run_last(graph, {data, {}, {}}, threads), second = run_last(graph, {data, {}, {}}, threads);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(bit_equal(first[i], second[i])) << threads << " threads, output " << i;
  }
}

// oneDNN overruns its workspace for this layer; the weight gradient must be correct nevertheless.
TEST(OnednnConvolution, StridedPointwiseWeightGradientWithFewChannels) {
  for (const int64_t channels : {1, 3, 8, 15}) {
    Graph graph;
    const Value x = graph.add_input("x", images({4, channels, 9, 9}), ValueRole::kInput);
    const Value grad = graph.add_input("grad", images({4, 24, 5, 5}), ValueRole::kInput);
    Conv2dBackwardWeightsAttrs attrs;
    attrs.stride = {2};
    attrs.kernel_size = {1};
    conv2d_backward_weights(x, grad, attrs);
    const Tensor a = spread({4, channels, 9, 9}, 0, 0.3), b = spread({4, 24, 5, 5}, 0, 0.7);
    const auto first = run_last(graph, {a, b}, 2), second = run_last(graph, {a, b}, 2);
    EXPECT_TRUE(bit_equal(first[0], second[0]));
    for (int64_t o = 0; o < 24; ++o) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int64_t n = 0; n < 4; ++n) {
          for (int64_t i = 0; i < 25; ++i) sum += a.at({n, c, i / 5 * 2, i % 5 * 2}) * b.at({n, o, i / 5, i % 5});
        }
        EXPECT_TRUE(std::fabs(first[0].at({o, c, 0, 0}) - sum) <= 1e-4)
            << "100 products of size 2 in float: channel " << c << " of " << channels;
      }
    }
  }
}

// Gradients in blocked formats, with 65 channels in blocks of 16 and with 24 depthwise channels: padding must not add to the norm.
TEST(CpuSumSquares, BlockedPaddingCountsNothing) {
  for (const bool depthwise : {false, true}) {
    const Shape in{2, depthwise ? 24 : 19, 9, 9}, out{2, depthwise ? 24 : 65, 9, 9};
    Graph graph;
    const Value x = graph.add_input("x", images(in), ValueRole::kInput), grad = graph.add_input("grad", images(out), ValueRole::kInput);
    Conv2dBackwardWeightsAttrs attrs;
    attrs.padding = {1};
    attrs.kernel_size = {3};
    attrs.groups = depthwise ? 24 : 1;
    const Value dw = conv2d_backward_weights(x, grad, attrs);
    const Tensor a = spread(in, 0, 0.3), b = spread(out, 0, 0.7);
    const Tensor plain = run_last(graph, {a, b}, 2)[0];
    graph.value(dw.id()).type.format = MemoryFormat::blocked(depthwise ? "Abcd16a" : "ABcd8b16a");
    const Tensor blocked = run_last(graph, {a, b}, 2)[0];
    ASSERT_GT(blocked.bytes(), plain.bytes());
    double want = 0;
    for (const double value : plain.to_doubles()) want += value * value;
    sum_squares(std::span<const Value>(&dw, 1));
    const double got = run_last(graph, {blocked}, 2)[0].at({});
    // The two gradients may be summed in different orders: 162 products of size 2 in float.
    EXPECT_TRUE(std::fabs(got - want) <= 1e-5 * want) << got << " against " << want << (depthwise ? ", depthwise" : "");
  }
}

TEST(CpuSumSquares, BitsDoNotDependOnTheThreads) {
  const Shape shape{8, 19, 17, 41};
  Graph graph;
  const Value x[] = {graph.add_input("x", images(shape), ValueRole::kInput)};
  sum_squares(x);
  const Tensor data = spread(shape, 3, 0.2);
  const Tensor one = run_last(graph, {data}, 1)[0];
  for (const int threads : {2, 3}) EXPECT_TRUE(bit_equal(one, run_last(graph, {data}, threads)[0])) << threads;
}

Tensor indices(const Shape& shape, int64_t classes, int64_t first) {
  Tensor tensor(DType::kI64, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) tensor.data_as<int64_t>()[i] = i == 0 ? first : i * 7 % classes;
  return tensor;
}

TEST(CpuCrossEntropy, RefusesClassesThatThereAreNot) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 5, 3}}) {
    const Shape positions = shape.rank() == 2 ? Shape{3} : Shape{2, 3};
    for (const int64_t wrong : {5, -1}) {
      Graph graph;
      const Value x = graph.add_input("x", {DType::kF32, shape}, ValueRole::kInput),
                  t = graph.add_input("t", {DType::kI64, positions}, ValueRole::kInput);
      const Value loss = cross_entropy(x, t);
      const Tensor logits(DType::kF32, shape), targets = indices(positions, 5, wrong);
      EXPECT_THROW(run_last(graph, {logits, targets, {}}, 2), Error) << shape << wrong;
      cross_entropy_backward(loss, x, t, {}, {});
      EXPECT_THROW(run_last(graph, {Tensor(DType::kF32, {}), logits, targets, {}}, 2), Error) << shape << wrong;
    }
  }
}

TEST(CpuCrossEntropy, BitsDoNotDependOnTheThreads) {
  for (const Shape& shape : {Shape{700, 101}, Shape{3, 21, 30, 37}}) {
    const Shape positions = shape.rank() == 2 ? Shape{700} : Shape{3, 30, 37};
    Graph graph;
    const Value x = graph.add_input("x", {DType::kF32, shape}, ValueRole::kInput),
                t = graph.add_input("t", {DType::kI64, positions}, ValueRole::kInput);
    CrossEntropyAttrs attrs;
    attrs.label_smoothing = 0.1;
    cross_entropy(x, t, {}, attrs);
    Tensor logits(DType::kF32, shape);
    logits.from_doubles(spread(shape.rank() == 2 ? Shape{700, 101, 1, 1} : shape, 0, 0.4).to_doubles());
    const Tensor targets = indices(positions, 21, 3), one = run_last(graph, {logits, targets, {}}, 1)[0];
    for (const int threads : {2, 3}) EXPECT_TRUE(bit_equal(one, run_last(graph, {logits, targets, {}}, threads)[0])) << threads;
  }
}

}  // namespace
}  // namespace galley
