// Laws of the table of element-wise functions: everything a row declares exists. Each function has a reference, vector kernels in f32 and
// bf16 (also of its backward operator), its layer and the table of an int8 look-up, and survives a round trip through an ONNX file.

#include "libcore/ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/builder.h"
#include "libcore/nn/layer_kinds.h"
#include "libcore/nn/layer_spec.h"
#include "libcore/onnx/export/export.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/support/target.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

class EveryRow : public testing::TestWithParam<std::string> {
 protected:
  EveryRow() { ensure_ops_registered(); }
  const ElementwiseRow& row() const { return *find_elementwise(GetParam()); }

  /// Attributes with non-default values: the second of choices, and valid numbers.
  std::unique_ptr<Options> attributes(bool second) const {
    if (row().make_attrs == nullptr) return nullptr;
    std::unique_ptr<Options> made = row().make_attrs();
    class Change : public Setter {
     public:
      Change() : Setter("", {}) {}
      using Setter::choice;
      using Setter::option;
      void option(const OptionInfo& info, double& value) override {
        value = info.name == "min" ? -0.4 : info.name == "threshold" ? 0.75 : 0.625;
      }
      void choice(const OptionInfo&, int& value, std::span<const std::string_view>) override { value = 1; }
    } change;
    if (second) made->options(change);
    return made;
  }
  /// The function of x [N,9] and of operands derived from it, within the function's domain.
  Value apply(Value x, bool second) const {
    const Value positive = affine(square(x), 1, 0.5);
    std::vector<Value> inputs{row().arity() == 3 ? less(x, affine(x, -1, 0.1)) : positive};
    const bool signs = row().precision != PrecisionRule::kKeepF32 && row().arity() == 1;
    if (signs) inputs[0] = affine(x, 3);
    while (static_cast<int>(inputs.size()) < row().arity()) inputs.push_back(affine(x, 2, 0.3));
    const Value y = emit_all(row().name, attributes(second), inputs).front();
    return y.dtype() == DType::kBool ? where(y, x, affine(x, -1)) : y;
  }
  int forms() const { return row().make_attrs != nullptr ? 2 : 1; }
};

TEST_P(EveryRow, HasAReferenceAndVectorKernels) {
  EXPECT_NE(find_reference(row().name), nullptr);
  std::vector<std::string> ops{GetParam()};
  if (row().slope.reads != SlopeReads::kNothing) ops.push_back(GetParam() + "_backward");
  for (const std::string& op : ops) {
    const std::span<const Kernel* const> kernels = test::cpu().kernels(find_op(op));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Graph graph;
      TensorType type;
      type.dtype = dtype;
      type.shape = {3, 4};
      std::vector<Value> inputs;
      const int count = static_cast<int>(find_op(op).inputs.size());
      for (int i = 0; i < count; ++i) {
        TensorType own = type;
        if (i == 0 && count == 3) own.dtype = DType::kBool;
        inputs.push_back(graph.add_input(cat("x", i), own, ValueRole::kInput));
      }
      emit_all(op, attributes(false), inputs);
      const Node& node = graph.nodes().back();
      const KernelQuery query = test::cpu().query(graph, node);
      const bool fast =
          std::any_of(kernels.begin(), kernels.end(), [&](const Kernel* kernel) { return !kernel->reference && kernel->supports(query); });
      EXPECT_TRUE(fast) << op << " of " << dtype;
    }
  }
}

TEST_P(EveryRow, TakesTheNumbersOfItsAttributes) {
  class Count : public Setter {
   public:
    Count() : Setter("", {}) {}
    using Setter::option;
    void option(const OptionInfo&, double&) override { ++numbers; }
    int numbers = 0;
  } count;
  if (row().make_attrs != nullptr) row().make_attrs()->options(count);
  for (const Formula& formula : row().formulas) {
    EXPECT_EQ(formula.numbers, count.numbers);
    EXPECT_EQ(formula.values, row().arity());
    EXPECT_EQ(formula.slope != nullptr, row().slope.reads != SlopeReads::kNothing);
  }
}

TEST_P(EveryRow, IsALayerWhereItSaysSo) {
  const ComponentKinds kinds = layer_kinds();
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const ComponentKind& k) { return k.type == row().name; });
  // prelu's layer has a parameter: it is not the function alone.
  EXPECT_EQ(kind != kinds.end(), !row().layer.empty() || row().name == "prelu");
  if (row().layer.empty()) return;
  Component layer;
  layer.type = GetParam();
  layer.params = kind->make();
  Graph graph;
  Builder b(graph);
  const Value x = b.input("input", {.shape = {2, 3}});
  build_layer(b, layer, "here", std::vector<Value>(static_cast<size_t>(row().arity()), x));
  ASSERT_EQ(graph.nodes().size(), 1u);
  EXPECT_EQ(graph.nodes()[0].op->name, row().name);
  EXPECT_EQ(graph.nodes()[0].path, "here");
}

TEST_P(EveryRow, HasATableForIntegers) {
  EXPECT_EQ(find_op(row().name).quantize, row().quantize);
  if (row().quantize != QuantizeRule::kTable) return;
  const QuantParams from{.scale = 0.03125, .zero_point = 0, .dtype = DType::kU8, .qmin = 0, .qmax = 255},
      to{.scale = 0.0625, .zero_point = 128, .dtype = DType::kU8, .qmin = 0, .qmax = 255};
  const std::unique_ptr<Options> given = attributes(true);
  const LookupAttrs table = table_of(from, to, scalar_function(find_op(row().name), given.get()));
  ASSERT_EQ(table.table.size(), 256u);
  const FunctionNumbers numbers = function_numbers(given.get());
  for (int64_t q = 1; q < 256; ++q) {
    const double x = static_cast<double>(q) / 32, y = row().formula(given.get()).value(&x, numbers);
    EXPECT_EQ(table.table[static_cast<size_t>(q)], static_cast<int64_t>(std::clamp(std::nearbyint(y * 16) + 128, 0.0, 255.0))) << q;
  }
}

TEST_P(EveryRow, ComesBackFromAnOnnxFile) {
  for (int form = 0; form < forms(); ++form) {
    const auto captured = [&](int64_t batch) {
      Captured made;
      Builder b(made.graph, {.mode = Mode::kEvaluation});
      made.graph.add_output("output", apply(b.input("input", {.shape = {batch, 9}}), form == 1));
      return made;
    };
    const TemporaryFolder folder;
    const std::string path = folder / "m.onnx";
    const Captured two = captured(2), three = captured(3);
    OnnxExport what;
    what.graph = &two.graph;
    what.other = &three.graph;
    what.values = [](const std::string&) -> Tensor { return {}; };
    write_onnx(path, onnx_document(what));
    const Tensor input = numbers({4, 9}), expected = compute(captured(4), input);
    EXPECT_GT(largest(expected), 0);
    // float32 rounding of a few operations, in another order if the function is exported as several nodes
    const double difference = largest_difference(expected, compute(capture(onnx_component(path), {4, 9}), input));
    EXPECT_TRUE(difference <= 2e-6 * std::max(1.0, largest(expected))) << difference << " of " << largest(expected);
  }
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const ElementwiseRow& row : elementwise_rows()) list.emplace_back(row.name);
  return list;
}
INSTANTIATE_TEST_SUITE_P(Rows, EveryRow, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

TEST(Activations, AreTheRowsOfTheirNames) {
  ensure_ops_registered();
  for (size_t i = 1; i < kActivationNames.size(); ++i) EXPECT_EQ(elementwise_row(static_cast<Activation>(i)).name, kActivationNames[i]);
}

/// A file with one node, of opset 18.
void write_node(const std::string& path, const std::string& op, const std::vector<std::pair<std::string, double>>& attributes) {
  OnnxDocument document;
  document.opset = 18;
  OnnxNode node;
  node.name = "node";
  node.op_type = op;
  node.inputs = {"input"};
  node.outputs = {"output"};
  for (const auto& [name, value] : attributes) {
    OnnxAttribute attribute;
    attribute.name = name;
    attribute.kind = OnnxAttributeKind::kFloat;
    attribute.f = value;
    node.attributes.push_back(std::move(attribute));
  }
  document.nodes.push_back(std::move(node));
  OnnxValue value;
  value.data_type = onnx_type(DType::kF32);
  value.has_shape = true;
  value.shape = {{std::nullopt, "N"}, {9, ""}};
  value.name = "input";
  document.inputs.push_back(value);
  value.name = "output";
  document.outputs.push_back(value);
  write_onnx(path, document);
}

// Definitions of the ONNX specification, in double.
TEST(OnnxFunctions, AreReadAsTheSpecificationDefinesThem) {
  struct Read {
    std::string op;
    std::vector<std::pair<std::string, double>> attributes;
    double (*value)(double);
  };
  const std::vector<Read> all{
      {"Elu", {}, [](double x) { return x < 0 ? std::expm1(x) : x; }},
      {"Elu", {{"alpha", 2}}, [](double x) { return x < 0 ? 2 * std::expm1(x) : x; }},
      {"LeakyRelu", {}, [](double x) { return x < 0 ? 0.01 * x : x; }},
      {"LeakyRelu", {{"alpha", 1.5}}, [](double x) { return x < 0 ? 1.5 * x : x; }},
      {"Softplus", {}, [](double x) { return std::log1p(std::exp(x)); }},
      {"Mish", {}, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {"Erf", {}, [](double x) { return std::erf(x); }},
      {"Sign", {}, [](double x) { return x > 0   ? 1.0
                                         : x < 0 ? -1.0
                                                 : 0.0; }},
      {"Floor", {}, [](double x) { return std::floor(x); }},
      {"Ceil", {}, [](double x) { return std::ceil(x); }},
      {"Round", {}, [](double x) { return std::nearbyint(x); }},
      {"Celu", {}, [](double x) { return std::max(0.0, x) + std::min(0.0, std::expm1(x)); }},
      {"Celu", {{"alpha", 0.5}}, [](double x) { return std::max(0.0, x) + std::min(0.0, 0.5 * std::expm1(x / 0.5)); }},
      {"Selu", {}, [](double x) { return 1.05070102214813232421875 * (x > 0 ? x : 1.67326319217681884765625 * std::expm1(x)); }},
      {"Selu", {{"alpha", 2}, {"gamma", 3}}, [](double x) { return 3 * (x > 0 ? x : 2 * std::expm1(x)); }},
      {"Softsign", {}, [](double x) { return x / (1 + std::abs(x)); }},
  };
  const TemporaryFolder folder;
  for (const Read& read : all) {
    const std::string path = folder / "m.onnx";
    write_node(path, read.op, read.attributes);
    Tensor input(DType::kF32, {4, 9});
    std::vector<double> x;
    for (int i = 0; i < 36; ++i) x.push_back((i - 18) * 0.25);
    input.from_doubles(x);
    const std::vector<double> y = compute(capture(onnx_component(path), {4, 9}), input).to_doubles();
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_TRUE(std::fabs(y[i] - read.value(x[i])) <= 1e-6 * std::max(1.0, std::fabs(y[i])))
          << read.op << " of " << x[i] << " is " << y[i];
  }
}

}  // namespace
}  // namespace galley
