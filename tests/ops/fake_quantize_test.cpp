// The gradients of fake quantization. Its forward pass is a step function. The gradients are those of another function: with constant
// rounding errors e = round(x / scale) - x / scale, y = scale * (clamp(x / scale + e + zero_point, qmin, qmax) - zero_point) (LSQ, Esser
// et al. 2020, section 2.1). The operators must agree with central differences of that function, computed here.

#include "libcore/ops/fake_quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/registry.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct Problem {
  FakeQuantizeAttrs attrs;
  RefArray x, scale, zero_point, cotangent;
  size_t channel(size_t i) const {
    if (attrs.axis < 0) return 0;
    size_t inner = 1;
    for (int d = static_cast<int>(attrs.axis) + 1; d < x.shape.rank(); ++d) inner *= static_cast<size_t>(x.shape[d]);
    return i / inner % scale.v.size();
  }
};

Problem make_problem(int64_t axis) {
  Problem p;
  p.attrs.axis = axis;
  p.attrs.qmin = -4;
  p.attrs.qmax = 5;
  p.x.shape = Shape{3, 4, 5};
  p.scale.shape = p.zero_point.shape = axis < 0 ? Shape{} : Shape{p.x.shape[static_cast<int>(axis)]};
  RandomStream random(11, cat("axis", axis));
  for (int64_t i = 0; i < p.scale.shape.elements(); ++i) {
    p.scale.v.push_back(random.uniform(0.3, 0.6));
    p.zero_point.v.push_back(static_cast<double>(random.below(3)) - 1);
  }
  for (int64_t i = 0; i < p.x.shape.elements(); ++i) {
    // Away from the middles between two steps, where rounding is discontinuous, and from the limits of the range, where the function has
    // kinks.
    const size_t c = p.channel(static_cast<size_t>(i));
    double step = 0;
    do {
      step = std::floor(random.uniform(-9, 9));
    } while (step + p.zero_point.v[c] == static_cast<double>(p.attrs.qmin) ||
             step + p.zero_point.v[c] == static_cast<double>(p.attrs.qmax));
    p.x.v.push_back(p.scale.v[c] * (step + random.uniform(-0.45, 0.45)));
    p.cotangent.v.push_back(random.uniform(-1, 1));
  }
  p.cotangent.shape = p.x.shape;
  return p;
}

/// The objective of that function, with the rounding errors of the original point.
double surrogate(const Problem& at, const Problem& fixed) {
  double sum = 0;
  for (size_t i = 0; i < at.x.v.size(); ++i) {
    const size_t c = at.channel(i);
    const double held = fixed.x.v[i] / fixed.scale.v[c], e = std::nearbyint(held) - held;
    const double q = std::clamp(at.x.v[i] / at.scale.v[c] + e + at.zero_point.v[c], static_cast<double>(at.attrs.qmin),
                                static_cast<double>(at.attrs.qmax));
    sum += at.cotangent.v[i] * at.scale.v[c] * (q - at.zero_point.v[c]);
  }
  return sum;
}

/// Gradients of x and scale by the rule of the operator.
std::vector<RefArray> by_rule(const Problem& p) {
  ensure_ops_registered();
  Graph graph;
  const auto input = [&](const char* name, const RefArray& array) {
    TensorType type;
    type.dtype = DType::kF64;
    type.shape = array.shape;
    return graph.add_input(name, type, ValueRole::kInput);
  };
  const Value x = input("x", p.x), scale = input("scale", p.scale), zero_point = input("zero_point", p.zero_point);
  fake_quantize(x, scale, zero_point, p.attrs);
  const Node node = graph.nodes().back();
  const Value cotangent = input("cotangent", p.cotangent);
  GradientBuilder builder(graph, node, {cotangent}, {true, true, true});
  node.op->gradient(builder);
  EXPECT_FALSE(builder.result()[2]) << "the zero point has no gradient";
  const auto values = interpret(graph, {{"x", p.x}, {"scale", p.scale}, {"zero_point", p.zero_point}, {"cotangent", p.cotangent}});
  return {values.at(builder.result()[0].id()), values.at(builder.result()[1].id())};
}

TEST(FakeQuantize, GradientsAreThoseOfTheStraightThroughFunction) {
  for (int64_t axis : {-1, 0, 1, 2}) {
    const Problem p = make_problem(axis);
    const std::vector<RefArray> rule = by_rule(p);
    const double h = 1e-5;
    int inside = 0, outside = 0;
    const auto check = [&](RefArray Problem::* array, const RefArray& got, const char* name) {
      for (size_t i = 0; i < got.v.size(); ++i) {
        Problem up = p, down = p;
        (up.*array).v[i] += h;
        (down.*array).v[i] -= h;
        const double slope = (surrogate(up, p) - surrogate(down, p)) / (2 * h);
        // Differences of second order: h^2 of the third derivative (of the order of 100) plus 1e-16 * 20 / h.
        if (!(std::abs(got.v[i] - slope) <= 1e-7))
          ADD_FAILURE() << name << " element " << i << " axis " << axis << ": " << got.v[i] << ", by differences " << slope;
        if (array == &Problem::x) (slope == 0 ? outside : inside) += 1;
      }
    };
    check(&Problem::x, rule[0], "dx");
    check(&Problem::scale, rule[1], "dscale");
    EXPECT_GT(inside, 5);
    EXPECT_GT(outside, 5);
  }
}

TEST(FakeQuantize, TheFactorScalesTheScalesGradientOnly) {
  Problem p = make_problem(1);
  const std::vector<RefArray> plain = by_rule(p);
  p.attrs.gradient_factor = 0.25;
  const std::vector<RefArray> quarter = by_rule(p);
  EXPECT_EQ(quarter[0].v, plain[0].v);
  // A sum of scaled terms, each exact: a quarter is a power of two.
  for (size_t i = 0; i < plain[1].v.size(); ++i) EXPECT_EQ(quarter[1].v[i], plain[1].v[i] / 4);
}

/// Training rounds to the values of inference: dequantize(quantize(x)), bit-identical in f32.
TEST(FakeQuantize, IsDequantizeOfQuantize) {
  ensure_ops_registered();
  RandomStream random(3, "roundtrip");
  for (const QuantRange& range : {quant_range(QuantDType::kUint8), quant_range(QuantDType::kInt8), quant_range(QuantDType::kUint8, true)}) {
    const QuantParams params = affine_params(random.uniform(-3, -1), random.uniform(1, 4), range);
    Graph graph;
    TensorType type;
    type.shape = Shape{5000};
    const Value x = graph.add_input("x", type, ValueRole::kInput);
    type.shape = Shape{};
    const Value scale = graph.add_input("scale", type, ValueRole::kInput),
                zero_point = graph.add_input("zero_point", type, ValueRole::kInput);
    FakeQuantizeAttrs attrs;
    attrs.qmin = range.min;
    attrs.qmax = range.max;
    const Value fake = fake_quantize(x, scale, zero_point, attrs), real = dequantize(quantize(x, params), params);
    RefArray values{Shape{5000}, {}};
    for (int i = 0; i < 5000; ++i) values.v.push_back(random.uniform(-5, 6));
    const auto results =
        interpret(graph, {{"x", values}, {"scale", {{}, {params.scale}}}, {"zero_point", {{}, {static_cast<double>(params.zero_point)}}}},
                  /*round=*/true);
    EXPECT_EQ(results.at(fake.id()).v, results.at(real.id()).v);
  }
}

/// A moving average over batches follows its recursion, and NaN is kept.
TEST(ObserveRange, FollowsTheMovingAverage) {
  ensure_ops_registered();
  Graph graph;
  TensorType type;
  type.shape = Shape{6};
  const Value x = graph.add_input("x", type, ValueRole::kInput);
  type.shape = Shape{};
  const Value low = graph.add_input("low", type, ValueRole::kState), high = graph.add_input("high", type, ValueRole::kState);
  ObserveRangeAttrs attrs;
  attrs.averaging = 0.1;
  const MovingRange range = observe_range(x, low, high, graph.add_input("enabled", type, ValueRole::kInput), attrs);
  RandomStream random(5, "batches");
  const double infinity = std::numeric_limits<double>::infinity();
  double state_low = infinity, state_high = -infinity, want_low = 0, want_high = 0;
  for (int batch = 0; batch < 20; ++batch) {
    RefArray values{Shape{6}, {}};
    for (int i = 0; i < 6; ++i) values.v.push_back(random.uniform(-4, 4));
    const auto [least, most] = std::minmax_element(values.v.begin(), values.v.end());
    want_low = batch == 0 ? *least : 0.9 * want_low + 0.1 * *least;
    want_high = batch == 0 ? *most : 0.9 * want_high + 0.1 * *most;
    const auto results =
        interpret(graph, {{"x", values}, {"low", {{}, {state_low}}}, {"high", {{}, {state_high}}}, {"enabled", {{}, {1}}}});
    state_low = results.at(range.min.id())[0];
    state_high = results.at(range.max.id())[0];
    EXPECT_NEAR(state_low, want_low, 1e-12);  // 20 steps in double
    EXPECT_NEAR(state_high, want_high, 1e-12);
  }
  RefArray bad{Shape{6}, {1, 2, std::nan(""), 4, 5, 6}};
  const auto results = interpret(graph, {{"x", bad}, {"low", {{}, {state_low}}}, {"high", {{}, {state_high}}}, {"enabled", {{}, {1}}}});
  EXPECT_TRUE(std::isnan(results.at(range.min.id())[0]));
  EXPECT_TRUE(std::isnan(results.at(range.max.id())[0]));
}

}  // namespace
}  // namespace galley::test
