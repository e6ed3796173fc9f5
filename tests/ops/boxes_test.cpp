// The operators on boxes agree with torchvision's: results and gradients of the reference against tests/golden/ops/boxes.txt (float64, made
// by make_boxes.py in the same folder).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "libcore/ops/deform_conv.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/roi_pool.h"
#include "tests/ops/golden_file.h"

namespace galley::test {
namespace {

const GoldenArrays& boxes_golden(const std::string& name) {
  static const std::map<std::string, GoldenArrays> cases = read_golden("ops/boxes.txt");
  return cases.at(name);
}

Value boxes_input(Graph& graph, const std::string& name, const Shape& shape) {
  TensorType type;
  type.dtype = DType::kF64;
  type.shape = shape;
  return graph.add_input(name, type, ValueRole::kInput);
}

void expect_near_boxes(const std::string& what, const RefArray& got, const RefArray& want) {
  ASSERT_EQ(got.shape, want.shape) << what;
  for (int64_t i = 0; i < want.shape.elements(); ++i) ASSERT_NEAR(got[i], want[i], 1e-12) << what << " element " << i;
}

/// Applies an operator to arrays of a golden case; its result `y` and the gradient of each input (d_NAME), for the case's cotangent, are
/// the golden ones.
void expect_golden(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& differentiable,
                   const std::function<Value(const std::map<std::string, Value>&)>& apply) {
  SCOPED_TRACE(name);
  const GoldenArrays& want = boxes_golden(name);
  Graph graph;
  std::map<std::string, Value> values;
  std::map<std::string, RefArray> feeds{{"cotangent", want.at("cotangent")}};
  for (const std::string& each : inputs) {
    values[each] = boxes_input(graph, each, want.at(each).shape);
    feeds[each] = want.at(each);
  }
  const Value y = apply(values);
  const Node node = graph.nodes().back();
  std::vector<Value> cotangents(node.outputs.size());
  cotangents[0] = boxes_input(graph, "cotangent", y.shape());
  std::vector<bool> wanted;
  for (const ValueId id : node.inputs) {
    wanted.push_back(
        std::any_of(differentiable.begin(), differentiable.end(), [&](const std::string& each) { return values.at(each).id() == id; }));
  }
  GradientBuilder builder(graph, node, cotangents, wanted);
  node.op->gradient(builder);
  const auto results = interpret(graph, feeds);
  expect_near_boxes("y", results.at(y.id()), want.at("y"));
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!wanted[i]) continue;
    for (const std::string& each : differentiable) {
      if (values.at(each).id() == node.inputs[i])
        expect_near_boxes("d_" + each, results.at(builder.result()[i].id()), want.at("d_" + each));
    }
  }
}

TEST(Boxes, RoiPoolIsTorchvisions) {
  for (const auto& [name, size, scale] : {std::tuple{"roi_pool", std::vector<int64_t>{3, 2}, 0.5},
                                          std::tuple{"roi_pool_more_bins_than_pixels", std::vector<int64_t>{4, 5}, 0.25}}) {
    RoiPoolAttrs attrs;
    attrs.output_size = size;
    attrs.spatial_scale = scale;
    expect_golden(name, {"x", "boxes"}, {"x"}, [&](const auto& v) { return roi_pool(v.at("x"), v.at("boxes"), attrs).y; });
  }
}

TEST(Boxes, PositionSensitiveRoiAlignIsTorchvisions) {
  for (const auto& [name, size, scale, ratio] : {std::tuple{"ps_roi_align", std::vector<int64_t>{3, 2}, 0.5, int64_t{2}},
                                                 std::tuple{"ps_roi_align_adaptive", std::vector<int64_t>{2, 2}, 1.0, int64_t{0}}}) {
    PsRoiAlignAttrs attrs;
    attrs.output_size = size;
    attrs.spatial_scale = scale;
    attrs.sampling_ratio = ratio;
    expect_golden(name, {"x", "boxes"}, {"x"}, [&](const auto& v) { return ps_roi_align(v.at("x"), v.at("boxes"), attrs); });
  }
}

TEST(Boxes, DeformableConvolutionIsTorchvisions) {
  DeformConv2dAttrs plain;
  plain.padding = {1, 1};
  expect_golden("deform_plain", {"x", "offset", "weight", "bias"}, {"x", "offset", "weight", "bias"},
                [&](const auto& v) { return deform_conv2d(v.at("x"), v.at("offset"), v.at("weight"), plain, v.at("bias")); });
  DeformConv2dAttrs grouped;
  grouped.groups = 2;
  grouped.stride = {2, 1};
  grouped.padding = {1, 0};
  grouped.dilation = {1, 2};
  expect_golden("deform_groups", {"x", "offset", "weight", "bias", "mask"}, {"x", "offset", "weight", "bias", "mask"}, [&](const auto& v) {
    return deform_conv2d(v.at("x"), v.at("offset"), v.at("weight"), grouped, v.at("bias"), v.at("mask"));
  });
}

struct RoiCase {
  std::string name;
  RoiAlignAttrs attrs;
};

TEST(Boxes, RoiAlignIsTorchvisions) {
  const auto attrs = [](std::vector<int64_t> size, double scale, int64_t ratio, bool aligned) {
    RoiAlignAttrs a;
    a.output_size = std::move(size);
    a.spatial_scale = {scale};
    a.sampling_ratio = ratio;
    a.aligned = aligned;
    return a;
  };
  const RoiCase cases[] = {{"roi_align", attrs({3, 4}, 0.5, 2, false)},
                           {"roi_align_adaptive", attrs({2, 3}, 0.25, 0, false)},
                           {"roi_align_aligned", attrs({4, 2}, 1, 2, true)},
                           {"roi_align_aligned_adaptive", attrs({3, 3}, 0.5, 0, true)}};
  for (const RoiCase& c : cases) {
    SCOPED_TRACE(c.name);
    const GoldenArrays& want = boxes_golden(c.name);
    Graph graph;
    const Value x = boxes_input(graph, "x", want.at("x").shape), boxes = boxes_input(graph, "boxes", want.at("boxes").shape);
    const Value y = roi_align(x, boxes, c.attrs), cotangent = boxes_input(graph, "cotangent", y.shape());
    const Node node = graph.nodes().back();
    GradientBuilder builder(graph, node, {cotangent}, {true, false});
    node.op->gradient(builder);
    const auto values = interpret(graph, {{"x", want.at("x")}, {"boxes", want.at("boxes")}, {"cotangent", want.at("cotangent")}});
    expect_near_boxes("y", values.at(y.id()), want.at("y"));
    expect_near_boxes("d_x", values.at(builder.result()[0].id()), want.at("d_x"));
  }
}

TEST(Boxes, RegionsFromTheCountOnAreZero) {
  const GoldenArrays& want = boxes_golden("roi_align");
  Graph graph;
  const Value x = boxes_input(graph, "x", want.at("x").shape), boxes = boxes_input(graph, "boxes", want.at("boxes").shape);
  const Value count = graph.add_input("count", {.dtype = DType::kI64, .shape = {2}}, ValueRole::kInput);
  RoiAlignAttrs attrs;
  attrs.output_size = {3, 4};
  attrs.spatial_scale = {0.5};
  attrs.sampling_ratio = 2;
  const Value y = roi_align(x, boxes, attrs, count);
  const auto values = interpret(graph, {{"x", want.at("x")}, {"boxes", want.at("boxes")}, {"count", {{2}, {4, 6}}}});
  RefArray expected = want.at("y");
  const int64_t region = expected.shape.elements() / 12;
  std::fill(expected.v.begin() + 4 * region, expected.v.begin() + 6 * region, 0.0);
  expect_near_boxes("y", values.at(y.id()), expected);
}

TEST(Boxes, NmsSelectsAsTorchvisionsDetectors) {
  struct Case {
    std::string name;
    double iou, score;
    int64_t per_class, most;
  };
  for (const Case& c : {Case{"nms_one_class", 0.4, -1, 0, 100},
                        {"nms_classes", 0.3, 0.2, 0, 1000},
                        {"nms_per_class", 0.45, 0.2, 7, 1000},
                        {"nms_most", 0.5, 0.1, 12, 15}}) {
    SCOPED_TRACE(c.name);
    const GoldenArrays& want = boxes_golden(c.name);
    RefArray boxes = want.at("boxes"), scores = want.at("scores");
    boxes.shape = {1, boxes.shape[0], 4};
    scores.shape = {1, scores.shape[0], scores.shape[1]};
    Graph graph;
    NmsAttrs attrs;
    attrs.iou_threshold = c.iou;
    attrs.score_threshold = c.score;
    attrs.per_class = c.per_class;
    attrs.max_output = c.most;
    const Nms result = nms(boxes_input(graph, "boxes", boxes.shape), boxes_input(graph, "scores", scores.shape), attrs);
    const auto values = interpret(graph, {{"boxes", boxes}, {"scores", scores}});
    const RefArray& index = values.at(result.index.id());
    const auto count = static_cast<size_t>(values.at(result.count.id())[0]);
    ASSERT_EQ(count, want.at("index").v.size());
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(index.v[i], want.at("index").v[i]) << i;
    for (size_t i = count; i < index.v.size(); ++i) EXPECT_EQ(index.v[i], 0) << i;
  }
}

// Boxes that are the same for all classes, and boxes of each class that happen to be equal, give one result.
TEST(Boxes, SharedAndOwnBoxesAgree) {
  const GoldenArrays& want = boxes_golden("nms_classes");
  const int64_t rows = want.at("scores").shape[0], classes = want.at("scores").shape[1];
  RefArray shared = want.at("boxes"), own{{1, rows, classes, 4}, {}}, scores = want.at("scores");
  shared.shape = {1, rows, 4};
  scores.shape = {1, rows, classes};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < classes; ++k) own.v.insert(own.v.end(), shared.v.begin() + row * 4, shared.v.begin() + row * 4 + 4);
  }
  Graph graph;
  NmsAttrs attrs;
  attrs.iou_threshold = 0.3;
  const Value s = boxes_input(graph, "scores", scores.shape);
  const Nms one = nms(boxes_input(graph, "shared", shared.shape), s, attrs), other = nms(boxes_input(graph, "own", own.shape), s, attrs);
  const auto values = interpret(graph, {{"shared", shared}, {"own", own}, {"scores", scores}});
  EXPECT_EQ(values.at(one.index.id()).v, values.at(other.index.id()).v);
  EXPECT_EQ(values.at(one.count.id()).v, values.at(other.count.id()).v);
}

/// The mask of a batch of `samples`, whose first one has that global index, with alternating labels.
std::vector<double> sampled(int64_t samples, int64_t first, int64_t step) {
  constexpr int64_t kRows = 60;
  Graph graph;
  const TensorType integers{.dtype = DType::kI64, .shape = {samples, kRows}};
  const Value labels = graph.add_input("labels", integers, ValueRole::kInput);
  const Value rng = graph.add_input("rng", {.dtype = DType::kI64, .shape = {3}}, ValueRole::kInput);
  SampleLabelsAttrs attrs;
  attrs.size = 12;
  attrs.positive_fraction = 0.25;
  attrs.stream = 9;
  const Value mask = sample_labels(labels, {}, rng, attrs);
  std::vector<double> alternating;
  for (int64_t i = 0; i < samples * kRows; ++i) alternating.push_back(static_cast<double>(i % 3 == 0));
  return interpret(graph, {{"labels", {{samples, kRows}, alternating}},
                           {"rng", {{3}, {1, static_cast<double>(step), static_cast<double>(first)}}}})
      .at(mask.id())
      .v;
}

TEST(SampleLabels, DependOnTheGlobalSampleAndTheStepAlone) {
  // A batch of four, and its samples on ranks or in micro-batches of their own.
  const std::vector<double> whole = sampled(4, 10, 3);
  for (int64_t n = 0; n < 4; ++n) {
    const std::vector<double> alone = sampled(1, 10 + n, 3);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + n * 60)) << n;
  }
  EXPECT_NE(whole, sampled(4, 10, 4));
  EXPECT_NE(std::vector<double>(whole.begin(), whole.begin() + 60), std::vector<double>(whole.begin() + 60, whole.begin() + 120));
}

TEST(SampleLabels, EveryRowIsDrawnEquallyOften) {
  // 3 of 20 objects and 9 of 40 of the background, in each of 4000 samples.
  constexpr int64_t kSamples = 4000;
  const std::vector<double> mask = sampled(kSamples, 0, 1);
  for (int64_t row = 0; row < 60; ++row) {
    double drawn = 0;
    for (int64_t n = 0; n < kSamples; ++n) drawn += mask[static_cast<size_t>(n * 60 + row)];
    const double p = row % 3 == 0 ? 3.0 / 20 : 9.0 / 40;
    // Five standard deviations of a binomial distribution.
    EXPECT_NEAR(drawn, kSamples * p, 5 * std::sqrt(kSamples * p * (1 - p))) << row;
  }
}

}  // namespace
}  // namespace galley::test
