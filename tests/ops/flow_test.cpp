// grid_sample, correlation_lookup and convex_upsample agree with torch and torchvision: results and gradients of the reference against
// tests/golden/ops/flow.txt (float64, made by make_flow.py in the same folder).

#include "libcore/ops/flow.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/grid_sample.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/differentiate.h"
#include "tests/ops/golden_file.h"

namespace galley::test {
namespace {

const GoldenArrays& flow_golden(const std::string& name) {
  static const std::map<std::string, GoldenArrays> cases = read_golden("ops/flow.txt");
  return cases.at(name);
}

/// A graph whose inputs are the arrays of a golden case.
struct GoldenGraph {
  explicit GoldenGraph(const std::string& name) : want(flow_golden(name)) {}
  Value in(const std::string& name) {
    return graph.add_input(name, {.dtype = DType::kF64, .shape = want.at(name).shape}, ValueRole::kInput);
  }
  /// Compares y and the gradients of the inputs for the golden cotangent.
  void expect(Value y, const std::vector<std::string>& differentiable) {
    const Value objective = sum(mul(y, in("cotangent")), std::vector<int64_t>{});
    std::vector<ValueId> wanted;
    for (const std::string& name : differentiable) wanted.push_back(graph.find_input(name));
    const auto gradients = differentiate(graph, objective.id(), wanted);
    std::map<std::string, RefArray> feeds;
    for (const auto& [name, array] : want)
      if (graph.find_input(name) != kNoValue) feeds[name] = array;
    const auto values = interpret(graph, feeds);
    near("y", values.at(y.id()));
    for (const std::string& name : differentiable) near("d_" + name, values.at(gradients.at(graph.find_input(name))));
  }
  /// Both sides round at 1e-16, 10 digits are printed, of values up to 10.
  void near(const std::string& name, const RefArray& got) const {
    const RefArray& expected = want.at(name);
    ASSERT_EQ(got.shape, expected.shape) << name;
    for (int64_t i = 0; i < expected.shape.elements(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-8) << name << " element " << i;
  }

  const GoldenArrays& want;
  Graph graph;
};

TEST(Flow, GridSampleIsTorchs) {
  for (const GridSampleMode mode : {GridSampleMode::kBilinear, GridSampleMode::kNearest}) {
    for (const GridPadding padding : {GridPadding::kZeros, GridPadding::kBorder, GridPadding::kReflection}) {
      for (const bool align : {false, true}) {
        const auto name = cat(kGridSampleModeNames[static_cast<size_t>(mode)], "_", kGridPaddingNames[static_cast<size_t>(padding)], "_",
                              align ? "aligned" : "half");
        SCOPED_TRACE(name);
        GoldenGraph g(name);
        GridSampleAttrs attrs;
        attrs.mode = mode;
        attrs.padding_mode = padding;
        attrs.align_corners = align;
        const Value x = g.in("x"), grid = g.in("grid");
        g.expect(grid_sample(x, grid, attrs), {"x", "grid"});
      }
    }
  }
}

TEST(Flow, GridSampleOfNan) {
  Graph graph;
  const Value x = graph.add_input("x", {.dtype = DType::kF64, .shape = {1, 1, 1, 3}}, ValueRole::kInput);
  const Value grid = graph.add_input("grid", {.dtype = DType::kF64, .shape = {1, 1, 1, 2}}, ValueRole::kInput);
  GridSampleAttrs border;
  border.padding_mode = GridPadding::kBorder;
  const Value zeros = grid_sample(x, grid), first = grid_sample(x, grid, border);
  const auto values = interpret(graph, {{"x", {{1, 1, 1, 3}, {5, 6, 7}}}, {"grid", {{1, 1, 1, 2}, {NAN, 0}}}});
  EXPECT_TRUE(std::isnan(values.at(zeros.id())[0]));
  EXPECT_EQ(values.at(first.id())[0], 5);
}

void expect_lookup(const std::string& name, int levels, int64_t radius) {
  GoldenGraph g(name);
  const Value first = g.in("first"), second = g.in("second"), flow = g.in("flow");
  std::vector<Value> pyramid{second};
  for (int i = 1; i < levels; ++i) {
    AvgPool2dAttrs half;
    half.kernel_size = half.stride = {2};
    pyramid.push_back(emit("avg_pool2d", {pyramid.back()}, half));
  }
  CorrelationLookupAttrs attrs;
  attrs.radius = radius;
  g.expect(correlation_lookup(flow, first, pyramid, attrs), {"first", "second"});
}
// torchvision pools the products; pooled features give the same ones.
TEST(Flow, LookupIsTorchvisions) { expect_lookup("lookup", 2, 1); }
TEST(Flow, WideLookupIsTorchvisions) { expect_lookup("lookup_wide", 1, 3); }

TEST(Flow, LookupOfNan) {
  Graph graph;
  const auto input = [&](const std::string& name, const Shape& shape) {
    return graph.add_input(name, {.dtype = DType::kF64, .shape = shape}, ValueRole::kInput);
  };
  CorrelationLookupAttrs attrs;
  attrs.radius = 0;
  const Value y = correlation_lookup(input("flow", {1, 2, 1, 2}), input("first", {1, 1, 1, 2}), {input("level", {1, 1, 1, 2})}, attrs);
  const auto values = interpret(
      graph, {{"flow", {{1, 2, 1, 2}, {NAN, INFINITY, 0, 0}}}, {"first", {{1, 1, 1, 2}, {1, 1}}}, {"level", {{1, 1, 1, 2}, {3, 4}}}});
  EXPECT_TRUE(std::isnan(values.at(y.id())[0]));
  EXPECT_EQ(values.at(y.id())[1], 0);
}

TEST(Flow, ConvexUpsampleIsTorchvisions) {
  GoldenGraph g("convex_upsample");
  ConvexUpsampleAttrs attrs;
  attrs.factor = 2;
  const Value flow = g.in("flow"), mask = g.in("mask");
  g.expect(convex_upsample(flow, mask, attrs), {"flow", "mask"});
}

TEST(Flow, DetachStopsTheGradient) {
  Graph graph;
  const Value x = graph.add_input("x", {.dtype = DType::kF64, .shape = {2}}, ValueRole::kInput);
  const Value objective = sum(mul(x, detach(x)), std::vector<int64_t>{});
  const auto gradients = differentiate(graph, objective.id(), std::vector{x.id()});
  const auto values = interpret(graph, {{"x", {{2}, {3, -5}}}});
  EXPECT_EQ(values.at(gradients.at(x.id())).v, (std::vector<double>{3, -5}));  // not 2 x
}

}  // namespace
}  // namespace galley::test
