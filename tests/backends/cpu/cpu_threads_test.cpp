// Kernels with parallel sums give bit-identical results for any number of threads: embedding gradients, layer and group norm, batch norm of
// contiguous arrays, resampling gradients, recurrent layers, linear layers.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/resize.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"

namespace galley {
namespace {

using test::cpu;

Value input(Graph& graph, const Shape& shape, DType dtype = DType::kF32) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return graph.add_input(cat("in", graph.inputs().size()), type, ValueRole::kInput);
}

/// The outputs of the graph's last node by its CPU kernel. Inputs are a fixed sequence (positive; integers 0 to 12).
std::vector<Tensor> run_last(const Graph& graph, int threads) {
  set_compute_threads(threads);
  const Node& node = graph.nodes().back();
  const KernelQuery query{node, context_of(graph, node), threads};
  const KernelChoice choice = test::cpu().choose(query);
  EXPECT_FALSE(choice.kernel->reference || choice.kernel->algorithm == "onednn") << node.op->name;
  std::vector<Tensor> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const ValueId id : node.inputs) {
    if (id == kNoValue) {
      inputs.emplace_back();
      continue;
    }
    const TensorType& type = graph.type(id);
    std::vector<double> values(static_cast<size_t>(type.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = type.dtype == DType::kI64 ? static_cast<double>(i * i % 13) : 1.5 + std::sin(1.618 * static_cast<double>(i * i % 10007));
    inputs.emplace_back(type.dtype, type.shape, type.format);
    inputs.back().from_doubles(values);
  }
  for (const Tensor& tensor : inputs) in.push_back(tensor.defined() ? tensor.data() : nullptr);
  for (const ValueId id : node.outputs) outputs.emplace_back(graph.type(id).dtype, graph.type(id).shape, graph.type(id).format);
  for (Tensor& tensor : outputs) {
    std::memset(tensor.data(), 0xFF, static_cast<size_t>(tensor.bytes()));
    out.push_back(tensor.data());
  }
  const auto kernel = choice.kernel->prepare(query);
  const auto scratch = Storage::allocate(std::max<int64_t>(64, kernel->scratch_bytes()));
  kernel->run(host_stream(), {in, out, scratch->data()});
  return outputs;
}

struct ThreadCase {
  const char* name;
  std::function<void(Graph&)> build;
};

/// The last operator of each graph gives the same bits with one thread and with several.
void expect_equal_bits(const std::vector<ThreadCase>& cases) {
  ensure_ops_registered();
  for (const auto& [name, build] : cases) {
    Graph graph;
    build(graph);
    const auto one = run_last(graph, 1);
    for (const int threads : {2, 3, 7}) {
      const auto many = run_last(graph, threads);
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_TRUE(bit_equal(one[i], many[i])) << name << " output " << i << ", " << threads << " threads";
    }
  }
}

TEST(CpuThreads, BitsOfNormsDoNotDependOnThem) {
  expect_equal_bits({
      {"layer_norm", [](Graph& g) { layer_norm(input(g, {301, 257}), input(g, {257}), input(g, {257})); }},
      {"layer_norm_backward",
       [](Graph& g) {
         layer_norm_backward(input(g, {301, 257}), input(g, {301, 257}), input(g, {301}), input(g, {301}), input(g, {257}), {});
       }},
      {"group_norm",
       [](Graph& g) {
         GroupNormAttrs a;
         a.groups = 3;
         group_norm(input(g, {2, 12, 43, 37}), input(g, {12}), input(g, {12}), a);
       }},
      {"group_norm_backward",
       [](Graph& g) {
         GroupNormBackwardAttrs a;
         a.groups = 3;
         group_norm_backward(input(g, {2, 12, 43, 37}), input(g, {2, 12, 43, 37}), input(g, {2, 3}), input(g, {2, 3}), input(g, {12}), a);
       }},
      {"batch_norm", [](Graph& g) { batch_norm(input(g, {5, 7, 43, 37}), input(g, {7}), input(g, {7})); }},
      {"batch_norm_backward",
       [](Graph& g) {
         BatchNormBackwardAttrs a;
         a.activation = Activation::kRelu;
         const Shape image{5, 7, 43, 37};
         batch_norm_backward(input(g, image), input(g, image), input(g, {7}), input(g, {7}), input(g, {7}), input(g, {7}), {}, a);
       }},
  });
}

TEST(CpuThreads, BitsOfProductsAndRecurrentLayersDoNotDependOnThem) {
  expect_equal_bits({
      {"linear", [](Graph& g) { linear(input(g, {21, 203}), input(g, {101, 203}), input(g, {101})); }},
      // A batch that is divided among threads by rows, and one divided by columns.
      {"rnn",
       [](Graph& g) {
         RnnAttrs a;
         a.nonlinearity = Nonlinearity::kRelu;
         rnn(input(g, {131, 3, 19}), {input(g, {37, 19}), input(g, {37, 37}), input(g, {37}), input(g, {37})}, input(g, {131, 37}), a);
       }},
      {"rnn_few_rows",
       [](Graph& g) {
         RnnAttrs a;
         a.nonlinearity = Nonlinearity::kRelu;
         rnn(input(g, {7, 3, 19}), {input(g, {37, 19}), input(g, {37, 37}), {}, {}}, {}, a);
       }},
      {"lstm_backward",
       [](Graph& g) {
         lstm_backward(input(g, {131, 3, 37}), {}, {}, input(g, {131, 3, 148}), input(g, {131, 3, 37}), input(g, {148, 37}), {}, {});
       }},
      {"gru_backward",
       [](Graph& g) { gru_backward(input(g, {7, 3, 37}), {}, input(g, {7, 3, 148}), input(g, {7, 3, 37}), input(g, {111, 37}), {}, {}); }},
  });
}

TEST(CpuThreads, BitsOfOtherGradientsDoNotDependOnThem) {
  expect_equal_bits({
      {"embedding_backward",
       [](Graph& g) {
         EmbeddingBackwardAttrs a;
         a.rows = 13;
         embedding_backward(input(g, {700, 83}), input(g, {700}, DType::kI64), a);
       }},
      {"batch_norm_depthwise_backward",
       [](Graph& g) {
         BatchNormDepthwiseAttrs a;
         a.activation = Activation::kHardswish;
         a.stride = {2};
         a.padding = {1};
         const auto image = [&](int64_t size) {
           const Value v = input(g, {6, 19, size, size});
           g.value(v.id()).type.format = MemoryFormat::channels_last();
           return v;
         };
         const Value grad = image(23), weight = input(g, {19, 1, 3, 3}), x = image(46);
         batch_norm_depthwise_backward(grad, weight, x, input(g, {19}), input(g, {19}), input(g, {19}), input(g, {19}), a);
         g.value(g.nodes().back().outputs[0]).type.format = MemoryFormat::channels_last();
       }},
      {"resize_backward",
       [](Graph& g) {
         ResizeBackwardAttrs a;
         a.input_size = {23, 17};
         resize_backward(input(g, {3, 5, 50, 41}), a);
       }},
  });
}

}  // namespace
}  // namespace galley
