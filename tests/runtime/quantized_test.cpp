// A chain of quantized layers as a program (weights in the kernels' formats, guarded values, channels_last or not) against the reference
// program.

#include "libcore/ops/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "libcore/ops/f8.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

TensorType typed(DType dtype, const Shape& shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

struct Layer {
  Value weight, scale, bias;
};
Layer layer(Graph& graph, const std::string& name, const Shape& weight, DType dtype = DType::kI8) {
  const Shape outputs{weight[0]};
  return {graph.add_input(name + ".weight", typed(dtype, weight), ValueRole::kParameter),
          graph.add_input(name + ".weight_scale", typed(DType::kF32, outputs), ValueRole::kParameter),
          graph.add_input(name + ".bias", typed(DType::kF32, outputs), ValueRole::kParameter)};
}

/// First layer, depthwise, strided 1x1 with residual, squeeze and excite, mean, linear.
Graph small_network() {
  const QuantParams u8{0.0625, 20, DType::kU8, 0, 255};
  Graph graph;
  const Value image = graph.add_input("image", typed(DType::kF32, {2, 3, 15, 13}), ValueRole::kInput);
  QuantizedConv2dAttrs a;
  a.set_input(u8);
  a.set_output(u8);
  a.padding = {1};
  a.activation = Activation::kHardswish;
  const Layer stem = layer(graph, "stem", {18, 3, 3, 3});
  const Value x = quantized_conv2d(quantize(image, u8), stem.weight, stem.scale, stem.bias, a);
  a.groups = 18;
  a.activation = Activation::kRelu;
  const Layer dw = layer(graph, "dw", {18, 1, 3, 3});
  const Value y = quantized_conv2d(x, dw.weight, dw.scale, dw.bias, a);
  a.groups = 1;
  a.padding = {0};
  a.set_residual(u8);
  const Layer project = layer(graph, "project", {18, 18, 1, 1});
  const Value z = quantized_conv2d(y, project.weight, project.scale, project.bias, a, x);
  QuantizedAdaptiveAvgPool2dAttrs mean;
  mean.set_input(u8);
  mean.set_output(u8);
  a.activation = Activation::kHardsigmoid;
  const Layer gate = layer(graph, "gate", {18, 18, 1, 1});
  const Value g = quantized_conv2d(quantized_adaptive_avg_pool2d(z, mean), gate.weight, gate.scale, gate.bias, a);
  QuantizedBinaryAttrs times;
  times.set_inputs(u8, u8);
  times.set_output(u8);
  const Value pooled = quantized_adaptive_avg_pool2d(quantized_mul(z, g, times), mean);
  QuantizedLinearAttrs l;
  l.set_input(u8);
  const Layer head = layer(graph, "head", {5, 18});
  graph.add_output("features", quantized_mul(z, g, times));
  graph.add_output("scores", quantized_linear(reshape(pooled, {2, 18}), head.weight, head.scale, head.bias, l));
  return graph;
}

/// A first layer, a depthwise one, a strided one with a residual, and a head, with channels that are no multiples of 16.
Graph small_f8_network() {
  Graph graph;
  const Value image = graph.add_input("image", typed(DType::kF32, {2, 3, 9, 7}), ValueRole::kInput);
  const auto conv = [&](const std::string& name, Value x, const Shape& weight, F8Conv2dAttrs attrs, Value residual = {}) {
    const Layer own = layer(graph, name, weight, DType::kF8E4M3);
    attrs.input_scale = static_cast<double>(0.01f);
    return f8_conv2d(x, own.weight, own.scale, own.bias, attrs, residual);
  };
  F8Conv2dAttrs a;
  a.padding = {1};
  a.activation = Activation::kHardswish;
  const Value x = conv("stem", image, {18, 3, 3, 3}, a);
  a.groups = 18;
  a.activation = Activation::kRelu;
  const Value y = conv("dw", x, {18, 1, 3, 3}, a);
  a.groups = 1;
  a.padding = {0};
  const Value z = conv("project", y, {18, 18, 1, 1}, a, x);
  F8LinearAttrs l;
  l.input_scale = 0.0625;
  l.activation = Activation::kGelu;
  const Layer head = layer(graph, "head", {21, 18 * 9 * 7}, DType::kF8E4M3);
  graph.add_output("features", z);
  graph.add_output("scores", f8_linear(flatten(z), head.weight, head.scale, head.bias, l));
  return graph;
}

std::map<std::string, Tensor> run(const Graph& graph, const CompileOptions& options, int64_t* blocked) {
  const auto program = compile(graph, options);
  ParameterStore store;
  Execution execution(program, store);
  std::mt19937 random(7);
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    Tensor values(info.type.dtype, info.type.shape);
    std::vector<double> numbers(static_cast<size_t>(info.type.shape.elements()));
    for (double& v : numbers) {
      const double u = static_cast<double>(random()) / 4294967296.0;
      const bool scale = info.name.ends_with("_scale");
      v = info.type.dtype == DType::kI8 || info.type.dtype == DType::kF8E4M3 ? std::floor(-127 + 255 * u)
          : scale                                                            ? 0.002 + 0.003 * u
                                                                             : -2 + 4 * u;
    }
    values.from_doubles(numbers);
    if (info.role == ValueRole::kInput) {
      execution.feed(info.name, values);
    } else {
      store.set(info.name, values);
    }
  }
  execution.run();
  *blocked = 0;
  for (const auto& [name, format] : store.formats()) *blocked += format.is_blocked();
  return {{"features", execution.output("features")}, {"scores", execution.output("scores")}};
}

TEST(QuantizedProgram, EqualsTheReference) {
  if (!has_cpu()) GTEST_SKIP();
  ensure_ops_registered();
  const Graph graph = small_network();
  CompileOptions options;
  options.backend = open_backend("ref");
  int64_t blocked = 0;
  const auto want = run(graph, options, &blocked);
  EXPECT_EQ(blocked, 0);
  options.guard_bytes = 64;
  for (const LayoutMode mode : {LayoutMode::kAuto, LayoutMode::kContiguous}) {
    for (const int threads : {1, 3}) {
      options.backend = open_backend("cpu", {.threads = threads, .memory_format = mode});
      const auto got = run(graph, options, &blocked);
      EXPECT_EQ(blocked, mode == LayoutMode::kAuto ? 5 : 1) << "weights in the kernels' formats: all layers', or the linear one's";
      const auto a = got.at("features").to_doubles(), b = want.at("features").to_doubles();
      int64_t off = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(std::abs(a[i] - b[i]) <= 1) << i << ": " << a[i] << " != " << b[i];
        off += a[i] != b[i];
      }
      // Ties of float32 against double are rare, and each affects a few later values.
      EXPECT_LE(off, static_cast<int64_t>(a.size()) / 100);
      const auto c = got.at("scores").to_doubles(), d = want.at("scores").to_doubles();
      for (size_t i = 0; i < c.size(); ++i)
        EXPECT_TRUE(std::abs(c[i] - d[i]) <= 0.05)
            << "one level is 0.0625 of a mean times weights of up to 0.6: " << c[i] << " != " << d[i];
    }
  }
}

// The reference computes the formula of ops/f8.h in double; the CPU decodes and computes in f32; CUDA's products are those of the stand-in
// of cuBLASLt. A value next to the middle between two codes of f8 may fall to either side after sums of another order, and then differs by
// a sixteenth: of thousands of values few do, and each is one term of later sums. Where one of the two images has such a value in the last
// layer, all of its scores differ a little: half of them.
TEST(F8Program, BackEndsAgree) {
  ensure_ops_registered();
  const Graph graph = small_f8_network();
  int64_t blocked = 0;
  const auto want = run(graph, {.backend = open_backend("ref")}, &blocked);
  for (const std::string& device : device_names()) {
    if (device == "ref") continue;
    for (const LayoutMode mode : {LayoutMode::kAuto, LayoutMode::kContiguous}) {
      const auto got = run(graph, {.backend = open_backend(device, {.threads = 2, .memory_format = mode}), .guard_bytes = 64}, &blocked);
      for (const auto& [name, tensor] : want) {
        const auto a = got.at(name).to_doubles(), b = tensor.to_doubles();
        double largest = 0, signal = 0, noise = 0;
        int64_t off = 0;
        for (size_t i = 0; i < b.size(); ++i) largest = std::max(largest, std::abs(b[i]));
        for (size_t i = 0; i < b.size(); ++i) {
          signal += b[i] * b[i];
          noise += (a[i] - b[i]) * (a[i] - b[i]);
          off += !(std::abs(a[i] - b[i]) <= 1e-5 * largest);
        }
        EXPECT_GT(signal, 1e6 * noise) << device << " " << name;
        EXPECT_LE(off, static_cast<int64_t>(a.size() / (name == "features" ? 50 : 2))) << device << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace galley::test
