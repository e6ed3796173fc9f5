// Chains of element-wise functions are bit-identical to their separate operators.

#include <gtest/gtest.h>

#include "libcore/ops/convert.h"
#include "libcore/ops/reduce.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/graphs.h"
#include "tests/support/results.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// Functions of an image, with a gate per channel and image and a scale per channel, and all gradients.
void build_chains(Graph& graph, DType dtype, const Shape& shape) {
  const auto input = [&](const std::string& name, const Shape& of) {
    TensorType type = f32(of);
    type.dtype = dtype;
    return graph.add_input(name, type, ValueRole::kInput);
  };
  const Value x = input("x", shape), y = input("y", shape), gate = input("gate", {shape[0], shape[1], 1, 1}),
              scale = input("scale", {shape[1], 1, 1});
  AdaptiveAvgPool2dAttrs pool;
  pool.output_size = {1};
  const Value z = mul(add(mul(silu(x), gate), affine(y, -0.5, 2)), scale), all = cast(mul(tanh(z), exp(affine(z, 0.125))), DType::kF32);
  const Value loss =
      mean(add(adaptive_avg_pool2d(all, pool), square(adaptive_avg_pool2d(cast(z, DType::kF32), pool))), std::vector<int64_t>{});
  graph.add_output("z", cast(add(z, hardswish(neg(z))), DType::kF32));
  graph.add_output("loss", loss);
  for (const auto& [of, gradient] : differentiate(graph, loss.id(), std::vector<ValueId>{x.id(), y.id(), gate.id(), scale.id()})) {
    graph.add_output("d" + graph.value(of).name, cast(graph.at(gradient), DType::kF32));
  }
}

/// Outputs by name, and the number of chains.
std::pair<std::map<std::string, std::vector<double>>, int> run(const Graph& graph, const BackendOptions& options) {
  const auto program = compile(graph, {.backend = open_backend("cpu", options), .guard_bytes = 64});
  ParameterStore store;
  Execution execution(program, store);
  const auto feeds = feeds_for(graph);
  for (ValueId id : graph.inputs()) execution.feed(graph.value(id).name, to_tensor(graph.type(id), feeds.at(graph.value(id).name)));
  execution.run();
  std::map<std::string, std::vector<double>> outputs;
  for (const auto& [name, id] : graph.outputs()) outputs[name] = execution.output(name).to_doubles();
  return {std::move(outputs), count(program->graph(), "elementwise_chain")};
}

TEST(Chains, GiveTheBitsOfTheirOperators) {
  if (!has_cpu()) GTEST_SKIP();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const LayoutMode layout : {LayoutMode::kChannelsLast, LayoutMode::kContiguous}) {
      // Pixels whose channels share a tile, fill vectors, or need more than one tile; one image, whose gate is a vector.
      for (const Shape& shape : {Shape{2, 19, 7, 5}, Shape{3, 48, 9, 8}, Shape{2, 1100, 3, 2}, Shape{1, 33, 6, 5}}) {
        Graph graph;
        build_chains(graph, dtype, shape);
        const auto [chained, chains] = run(graph, {.threads = 2, .memory_format = layout});
        const auto [plain, none] = run(graph, {.threads = 2, .memory_format = layout, .chains = false});
        EXPECT_GE(chains, 3) << "forward and backward";
        EXPECT_EQ(none, 0);
        EXPECT_EQ(chained, plain) << shape << " " << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace galley::test
