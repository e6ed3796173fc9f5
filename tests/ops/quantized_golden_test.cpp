// Quantization agrees with PyTorch's: parameters, integers, gradients and operators of the reference against
// tests/golden/quantize/quantized.txt, made by make.py in the same folder.
//
// Where integers may differ: PyTorch multiplies by the reciprocal of the scale (1 / scale rounded to float32) where Galley divides, and its
// kernels compute in float32 where the reference computes in double; a value within that error of the middle between two integers may go
// either way. Engines that round the bias to int32, in steps of input scale * weight scale, move a result by at most half such a step;
// Galley's bias stays f32. So: one level, and few of them (kFew; in this file at most 3 of 256).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "tests/ops/golden_file.h"

namespace galley::test {
namespace {

constexpr double kFew = 0.02;  // part of the integers that may be one level off

const std::map<std::string, GoldenArrays>& quantized_golden() {
  static const std::map<std::string, GoldenArrays> cases = [] {
    std::map<std::string, GoldenArrays> read = read_golden("quantize/quantized.txt");
    for (auto& [name, arrays] : read) {  // nine decimal digits stand for one float32 value
      for (auto& [array_name, array] : arrays) {
        for (double& v : array.v) v = static_cast<double>(static_cast<float>(v));
      }
    }
    return read;
  }();
  return cases;
}

/// One case: its arrays as inputs of a graph, and the results of the graph.
class Golden {
 public:
  explicit Golden(const std::string& name) : name_(name), arrays_(quantized_golden().at(name)) { ensure_ops_registered(); }
  const RefArray& array(const std::string& name) const { return arrays_.at(name); }
  bool has(const std::string& name) const { return arrays_.count(name) == 1; }
  double number(const std::string& name) const { return arrays_.at(name).v.at(0); }
  int64_t integer(const std::string& name) const { return static_cast<int64_t>(number(name)); }
  std::vector<int64_t> integers(const std::string& name) const {
    std::vector<int64_t> list;
    for (double v : arrays_.at(name).v) list.push_back(static_cast<int64_t>(v));
    return list;
  }
  QuantParams params(const std::string& name, DType dtype = DType::kU8) const {
    const int64_t low = dtype == DType::kU8 ? 0 : -128;
    return {number(name + "_scale"), integer(name + "_zero_point"), dtype, low, low + 255};
  }
  Value input(const std::string& name, DType dtype = DType::kF32) {
    TensorType type;
    type.dtype = dtype;
    type.shape = array(name).shape;
    return graph_.add_input(name, type, ValueRole::kInput);
  }
  RefArray result(Value value) {
    std::map<std::string, RefArray> feeds;
    for (ValueId id : graph_.inputs()) feeds[graph_.value(id).name] = array(graph_.value(id).name);
    return interpret(graph_, feeds, /*round=*/true).at(value.id());
  }
  /// Compares integers; the share `few` of them may differ by one.
  void expect_integers(Value value, const std::string& name, double few = kFew) {
    SCOPED_TRACE(name_);
    const RefArray got = result(value), &want = array(name);
    ASSERT_EQ(got.shape, want.shape);
    int64_t off = 0;
    for (int64_t i = 0; i < want.shape.elements(); ++i) {
      if (!(std::abs(got[i] - want[i]) <= 1)) ADD_FAILURE() << "element " << i << " is " << got[i] << ", PyTorch " << want[i];
      off += got[i] != want[i];
    }
    if (!(static_cast<double>(off) <= few * static_cast<double>(want.shape.elements())))
      ADD_FAILURE() << off << " of " << want.shape.elements() << " are one level off";
  }
  /// Compares floats; `tolerance` is relative to the largest.
  void expect_values(Value value, const std::string& name, double tolerance) {
    SCOPED_TRACE(name_);
    const RefArray got = result(value), &want = array(name);
    ASSERT_EQ(got.shape, want.shape);
    double largest = 0;
    for (double v : want.v) largest = std::max(largest, std::abs(v));
    for (int64_t i = 0; i < want.shape.elements(); ++i) {
      if (!(std::abs(got[i] - want[i]) <= tolerance * largest))
        ADD_FAILURE() << name << " element " << i << " is " << got[i] << ", PyTorch " << want[i];
    }
  }
  Graph& graph() { return graph_; }

 private:
  std::string name_;
  const GoldenArrays& arrays_;
  Graph graph_;
};

/// Names of the file's cases with this prefix. EveryCaseIsRead verifies that all cases are used.
std::vector<std::string> names_with(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& [name, arrays] : quantized_golden()) {
    if (name.starts_with(prefix)) names.push_back(name);
  }
  EXPECT_FALSE(names.empty()) << prefix;
  return names;
}

TEST(QuantizedGolden, ObserversParametersAreExact) {
  for (const std::string& name : names_with("observer_")) {
    SCOPED_TRACE(name);
    Golden g(name);
    const int64_t qmin = g.integer("qmin"), qmax = g.integer("qmax");
    const bool symmetric = name.find("symmetric") != std::string::npos;
    const RefArray& low = g.array("low");
    for (int64_t i = 0; i < low.shape.elements(); ++i) {
      const double high = g.array("high")[i];
      const QuantRange range{qmin, qmax, qmin < 0 ? DType::kI8 : DType::kU8};
      const QuantParams p = symmetric ? symmetric_params(std::max({-low[i], high, 0.0}), range) : affine_params(low[i], high, range);
      EXPECT_EQ(p.scale, g.array("scale")[i]) << i;
      EXPECT_EQ(p.zero_point, g.array("zero_point")[i]) << i;
    }
    QparamsFromRangeAttrs attrs;
    attrs.qmin = qmin;
    attrs.qmax = qmax;
    attrs.symmetric = symmetric;
    const Value least = g.input("low");
    const RangeParams from_range = qparams_from_range(least, g.input("high"), attrs);
    EXPECT_EQ(g.result(from_range.scale).v, g.array("scale").v);
    EXPECT_EQ(g.result(from_range.zero_point).v, g.array("zero_point").v);
  }
}

/// observe_range over the batches gives the moving observers' ranges: float32 against double, a few roundings.
TEST(QuantizedGolden, MovingRangesAgree) {
  for (const std::string& name : names_with("observer_")) {
    if (name.find("moving") == std::string::npos) continue;
    SCOPED_TRACE(name);
    const Golden g(name);
    const bool channels = name.find("channels") != std::string::npos;
    const RefArray& batches = g.array("batches");
    ObserveRangeAttrs attrs;
    attrs.averaging = 0.01;
    attrs.axis = channels ? 0 : -1;
    Graph graph;
    TensorType type;
    for (int d = 1; d < batches.shape.rank(); ++d) type.shape.push_back(batches.shape[d]);
    RefArray batch{type.shape, {}};
    const Value x = graph.add_input("x", type, ValueRole::kInput);
    type.shape = g.array("low").shape;
    const Value low = graph.add_input("low", type, ValueRole::kState), high = graph.add_input("high", type, ValueRole::kState);
    type.shape = {};
    const MovingRange range = observe_range(x, low, high, graph.add_input("enabled", type, ValueRole::kInput), attrs);
    const double infinity = std::numeric_limits<double>::infinity();
    RefArray least{low.shape(), std::vector<double>(g.array("low").v.size(), infinity)},
        most{low.shape(), std::vector<double>(g.array("low").v.size(), -infinity)};
    const auto size = batch.shape.elements();
    for (int64_t b = 0; b < batches.shape[0]; ++b) {
      batch.v.assign(batches.v.begin() + b * size, batches.v.begin() + (b + 1) * size);
      const auto values = interpret(graph, {{"x", batch}, {"low", least}, {"high", most}, {"enabled", {{}, {1}}}}, /*round=*/true);
      least = values.at(range.min.id());
      most = values.at(range.max.id());
    }
    for (size_t i = 0; i < least.v.size(); ++i) {
      EXPECT_NEAR(least.v[i], g.array("low").v[i], 1e-6 * std::abs(least.v[i]));
      EXPECT_NEAR(most.v[i], g.array("high").v[i], 1e-6 * std::abs(most.v[i]));
    }
  }
}

TEST(QuantizedGolden, QuantizeAndDequantize) {
  for (const std::string& name : names_with("quantize_")) {
    Golden g(name);
    const QuantParams p = g.params("y", name.ends_with("i8") ? DType::kI8 : DType::kU8);
    // Scales of "halves" are powers of two: every middle is exact, and goes to the even integer on both sides.
    g.expect_integers(quantize(g.input("x"), p), "y", name.ends_with("halves") ? 0 : kFew);
    Golden back(name);
    back.expect_values(dequantize(back.input("y", p.dtype), p), "back", 1e-7);  // one rounding to float32
  }
}

TEST(QuantizedGolden, FakeQuantizeAndItsGradients) {
  for (const std::string& name : names_with("fake_")) {
    Golden g(name);
    FakeQuantizeAttrs attrs;
    attrs.axis = g.integer("axis");
    attrs.qmin = g.integer("qmin");
    attrs.qmax = g.integer("qmax");
    attrs.gradient_factor = g.number("factor");
    const Value x = g.input("x"), scale = g.input("scale"), zero_point = g.input("zero_point");
    const Value y = fake_quantize(x, scale, zero_point, attrs);
    const Node node = g.graph().nodes().back();
    GradientBuilder builder(g.graph(), node, {g.input("grad")}, {true, g.has("dscale"), false});
    node.op->gradient(builder);
    // No value of these cases is a tie, else the difference would be a whole step.
    g.expect_values(y, "y", 1e-6);
    g.expect_values(builder.result()[0], "dx", 1e-6);
    // A sum of 8 to 40 float32 terms.
    if (g.has("dscale")) g.expect_values(builder.result()[1], "dscale", 1e-6);
  }
}

Value bias_of(Golden& g) { return g.has("bias") ? g.input("bias") : Value(); }

TEST(QuantizedGolden, Convolutions) {
  for (const std::string& name : names_with("conv2d_")) {
    Golden g(name);
    QuantizedConv2dAttrs a;
    a.stride = g.integers("stride");
    a.padding = g.integers("padding");
    a.dilation = g.integers("dilation");
    a.groups = g.integer("groups");
    a.activation = g.integer("relu") == 1 ? Activation::kRelu : Activation::kNone;
    a.saturation = Saturation::kReduced;
    a.set_input(g.params("x"));
    a.set_output(g.params("y"));
    const Value x = g.input("x", DType::kU8), weight = g.input("weight", DType::kI8), scale = g.input("weight_scale");
    g.expect_integers(quantized_conv2d(x, weight, scale, bias_of(g), a), "y");
  }
}

TEST(QuantizedGolden, LinearLayers) {
  for (const std::string& name : names_with("linear_")) {
    if (name.starts_with("linear_dynamic")) continue;
    Golden g(name);
    QuantizedLinearAttrs a;
    a.activation = g.integer("relu") == 1 ? Activation::kRelu : Activation::kNone;
    a.set_input(g.params("x"));
    a.set_output(g.params("y"));
    const Value x = g.input("x", DType::kU8), weight = g.input("weight", DType::kI8), scale = g.input("weight_scale");
    g.expect_integers(quantized_linear(x, weight, scale, bias_of(g), a), "y");
  }
}

TEST(QuantizedGolden, DynamicLinearLayers) {
  for (const std::string& name : names_with("linear_dynamic")) {
    Golden g(name);
    DynamicQuantizedLinearAttrs a;
    a.saturation = g.integer("reduced") == 1 ? Saturation::kReduced : Saturation::kExact;
    const Value x = g.input("x"), weight = g.input("weight", DType::kI8), scale = g.input("weight_scale");
    // Both choose the same integers, else a result would differ by 1e-3 of the largest. The remaining differences are roundings of float32.
    g.expect_values(dynamic_quantized_linear(x, weight, scale, bias_of(g), a), "y", 1e-6);
  }
}

TEST(QuantizedGolden, ElementWiseAndConcatenation) {
  for (const std::string name : {"add", "add_relu", "mul"}) {
    Golden g(name);
    QuantizedBinaryAttrs attrs;
    attrs.set_inputs(g.params("a"), g.params("b"));
    attrs.set_output(g.params("y"));
    attrs.activation = name == "add_relu" ? Activation::kRelu : Activation::kNone;
    const Value a = g.input("a", DType::kU8), b = g.input("b", DType::kU8);
    g.expect_integers(name == "mul" ? quantized_mul(a, b, attrs) : quantized_add(a, b, attrs), "y");
  }
  Golden g("cat");
  QuantizedConcatAttrs attrs;
  for (const char* name : {"a", "b", "c"}) attrs.add_input(g.params(name));
  attrs.set_output(g.params("y"));
  std::vector<Value> inputs;
  for (const char* name : {"a", "b", "c"}) inputs.push_back(g.input(name, DType::kU8));
  g.expect_integers(quantized_concat(inputs, attrs), "y");
}

TEST(QuantizedGolden, Pools) {
  for (const std::string name : {"avg_pool2d", "avg_pool2d_valid"}) {
    Golden g(name);
    QuantizedAvgPool2dAttrs a;
    a.kernel_size = {3, 2};
    a.stride = {1, 2};
    a.padding = {1, 0};
    a.count_include_pad = g.integer("count_include_pad") == 1;
    a.set_input(g.params("x"));
    a.set_output(g.params("y"));
    g.expect_integers(quantized_avg_pool2d(g.input("x", DType::kU8), a), "y");
  }
  Golden adaptive("adaptive_avg_pool2d");
  QuantizedAdaptiveAvgPool2dAttrs a;
  a.output_size = {3, 2};
  a.set_input(adaptive.params("x"));
  a.set_output(adaptive.params("y"));
  adaptive.expect_integers(quantized_adaptive_avg_pool2d(adaptive.input("x", DType::kU8), a), "y");
  Golden largest("max_pool2d");
  MaxPool2dAttrs window;
  window.kernel_size = {3};
  window.stride = {2};
  window.padding = {1};
  EXPECT_EQ(largest.params("y"), largest.params("x"));
  largest.expect_integers(max_pool2d(largest.input("x", DType::kU8), window).y, "y", 0);
}

TEST(QuantizedGolden, TableFunctions) {
  for (const std::string& name : names_with("table_")) {
    Golden g(name);
    const OpDef& op = find_op(name.substr(6));
    const std::unique_ptr<Options> attributes = op.make_attrs != nullptr ? op.make_attrs() : nullptr;
    g.expect_integers(lookup(g.input("x", DType::kU8), table_of(g.params("x"), g.params("y"), scalar_function(op, attributes.get()))), "y");
  }
}

TEST(QuantizedGolden, EveryCaseIsRead) {
  const std::vector<std::string> prefixes{"observer_", "quantize_", "fake_", "conv2d_", "linear_", "table_"},
      names{"add", "add_relu", "mul", "cat", "max_pool2d", "avg_pool2d", "avg_pool2d_valid", "adaptive_avg_pool2d"};
  for (const auto& [name, arrays] : quantized_golden()) {
    bool read = std::find(names.begin(), names.end(), name) != names.end();
    for (const std::string& prefix : prefixes) read |= name.starts_with(prefix);
    EXPECT_TRUE(read) << name;
  }
  EXPECT_EQ(quantized_golden().size(), 70u);
}

}  // namespace
}  // namespace galley::test
