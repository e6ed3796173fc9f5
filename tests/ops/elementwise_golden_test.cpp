// Law: element-wise functions have PyTorch's results and gradients, also at special values: the reference in double, the vector kernels in
// float.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/device/stream.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/registry.h"
#include "tests/ops/golden_file.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// The operator of a case in a graph, and its gradient.
struct Made {
  Graph graph;
  std::map<std::string, RefArray> feeds;
  size_t forward = 0;
  Value gradient;  // absent: zero
};

std::unique_ptr<Made> make(const std::string& name, const GoldenArrays& arrays, DType dtype) {
  ensure_ops_registered();
  auto made = std::make_unique<Made>();
  const std::string op = name.substr(0, name.find('.'));
  const OpDef& def = find_op(op);
  std::unique_ptr<Options> attributes = def.make_attrs != nullptr ? def.make_attrs() : nullptr;
  for (const auto& [option, value] : arrays) {
    if (option != "x" && option != "y" && option != "cotangent" && option != "d_x") set_number_option(*attributes, option, value[0]);
  }
  TensorType type;
  type.dtype = dtype;
  type.shape = arrays.at("x").shape;
  const Value inputs[] = {made->graph.add_input("x", type, ValueRole::kInput)};
  emit_all(op, std::move(attributes), inputs);
  made->forward = made->graph.nodes().size() - 1;
  const Value cotangent = made->graph.add_input("cotangent", type, ValueRole::kInput);
  const Node node = made->graph.nodes()[made->forward];
  GradientBuilder builder(made->graph, node, {cotangent}, {true});
  node.op->gradient(builder);
  made->gradient = builder.result()[0];
  made->feeds = {{"x", arrays.at("x")}, {"cotangent", arrays.at("cotangent")}};
  return made;
}

/// Whether `got` equals `want` within a relative or an absolute error. NaN equals NaN, and infinities must be equal.
bool same(double got, double want, double relative, double absolute) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::abs(got - want) <= std::max(relative * std::abs(want), absolute);
}

/// Gradients for which PyTorch has other rules: it multiplies infinity by 0 where the limit of the slope is 1 (softsign: 0), and relu
/// passes the gradient at NaN.
bool has_another_rule(const std::string& name, double x) {
  if (name.starts_with("softsign")) return std::isinf(x);
  const bool product = name.starts_with("mish") || name.starts_with("silu") || name.starts_with("gelu");
  return product ? x > 1e38 : name.starts_with("relu.") && std::isnan(x);
}

TEST(ElementwiseGolden, TheReferenceComputesWhatPyTorchDoes) {
  // A handful of operations in double; PyTorch's gelu adds 1 to a number near -1, and tanh's slope is 1 - y y.
  constexpr double kRelative = 1e-13, kAbsolute = 1e-15;
  for (const auto& [name, arrays] : read_golden("ops/elementwise.txt")) {
    SCOPED_TRACE(name);
    // PyTorch rounds the factor 1/6 of hardsigmoid to float, and 1/alpha of celu, whose exponent x / alpha enlarges the error.
    const bool single_celu = name == "celu.alpha";
    const auto relative_at = [&, &name = name](double at) {
      return single_celu ? 6e-8 * (1 + std::min(std::abs(at), 100.0) / 0.3) : name.starts_with("hardsigmoid") ? 6e-8 : kRelative;
    };
    const std::unique_ptr<Made> made = make(name, arrays, DType::kF64);
    const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds);
    const RefArray &x = arrays.at("x"), &y = values.at(made->graph.nodes()[made->forward].outputs[0]);
    for (int64_t i = 0; i < x.shape.elements(); ++i) {
      EXPECT_TRUE(same(y[i], arrays.at("y")[i], relative_at(x[i]), kAbsolute))
          << "f(" << x[i] << ") is " << y[i] << ", PyTorch " << arrays.at("y")[i];
      if (has_another_rule(name, x[i])) continue;
      const double slope = made->gradient ? values.at(made->gradient.id())[i] : 0;
      EXPECT_TRUE(same(slope, arrays.at("d_x")[i], relative_at(x[i]), kAbsolute))
          << "gradient at " << x[i] << " is " << slope << ", PyTorch " << arrays.at("d_x")[i];
    }
  }
}

/// Runs the vector kernel of a node on float arrays.
std::vector<float> run_kernel(const Graph& graph, const Node& node, const std::vector<std::vector<float>>& inputs) {
  const KernelQuery query = cpu().query(graph, node);
  for (const Kernel* kernel : cpu().kernels(*node.op)) {
    if (kernel->reference) continue;
    EXPECT_TRUE(static_cast<bool>(kernel->supports(query)));
    std::vector<float> out(inputs[0].size());
    std::vector<const void*> in;
    for (const std::vector<float>& array : inputs) in.push_back(array.data());
    void* outputs[] = {out.data()};
    kernel->prepare(query)->run(host_stream(), {in, outputs});
    return out;
  }
  ADD_FAILURE() << node.op->name << " has no vector kernel";
  return {};
}

std::vector<float> floats(const RefArray& array) { return {array.v.begin(), array.v.end()}; }

TEST(ElementwiseGolden, TheVectorKernelsComputeWhatPyTorchDoes) {
  if (cpu().reference()) GTEST_SKIP() << "this build has no CPU back end";
  // The functions have errors of a few units in the last place (6e-8), except gelu (2e-7 of the normal distribution) and differences of
  // nearly equal numbers (the slope of mish near its zero), whose error is relative to the subtracted numbers.
  constexpr double kRelative = 2e-6, kAbsolute = 4e-7;
  for (const auto& [name, arrays] : read_golden("ops/elementwise.txt")) {
    SCOPED_TRACE(name);
    const std::unique_ptr<Made> made = make(name, arrays, DType::kF32);
    const std::vector<float> x = floats(arrays.at("x")), y = run_kernel(made->graph, made->graph.nodes()[made->forward], {x});
    const auto close = [&](double got, double want) { return same(got, want, kRelative, kAbsolute); };
    // float32 cannot represent the results of the largest float64 numbers.
    const auto representable = [](double want) { return std::isnan(want) || std::isinf(want) || std::abs(want) < 3.4e38; };
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = arrays.at("y")[static_cast<int64_t>(i)];
      if (!representable(want)) continue;
      EXPECT_TRUE(close(y[i], want)) << "f(" << x[i] << ") is " << y[i] << ", PyTorch " << want;
    }
    if (!made->gradient || made->graph.nodes().size() != made->forward + 2) continue;
    const Node& backward = made->graph.nodes().back();
    const std::vector<float> from = backward.inputs[1] == made->graph.nodes()[made->forward].inputs[0] ? x : y;
    const std::vector<float> cotangent = floats(arrays.at("cotangent")), slope = run_kernel(made->graph, backward, {cotangent, from});
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = arrays.at("d_x")[static_cast<int64_t>(i)];
      if (!representable(want) || has_another_rule(name, x[i])) continue;
      EXPECT_TRUE(close(slope[i], want)) << "gradient at " << x[i] << " is " << slope[i] << ", PyTorch " << want;
    }
  }
}

}  // namespace
}  // namespace galley::test
