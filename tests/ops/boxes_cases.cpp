// Cases of nms, of the operators on regions, and of deformable convolution.

#include "libcore/ops/deform_conv.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/roi_pool.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

/// Boxes [N,rows,4] or [N,rows,classes,4] of which many overlap.
Value boxes_of(CaseInputs& in, int64_t samples, int64_t rows, int64_t classes, double extent) {
  RandomStream random(5, cat("boxes ", samples, " ", rows, " ", classes));
  std::vector<double> values;
  for (int64_t i = 0; i < samples * rows * std::max<int64_t>(classes, 1); ++i) {
    const double x = random.uniform() * extent, y = random.uniform() * extent;
    // Numbers that float32 holds, so that kernels and the reference see equal boxes.
    for (const double v : {x, y, x + extent * (0.1 + 0.4 * random.uniform()), y + extent * (0.1 + 0.4 * random.uniform())})
      values.push_back(static_cast<float>(v));
  }
  const Shape shape = classes == 0 ? Shape{samples, rows, 4} : Shape{samples, rows, classes, 4};
  return in.fixed(in.values(shape, values));
}

NmsAttrs nms_attrs(double iou, double score, int64_t per_class, int64_t most) {
  NmsAttrs attrs;
  attrs.iou_threshold = iou;
  attrs.score_threshold = score;
  attrs.per_class = per_class;
  attrs.max_output = most;
  return attrs;
}

std::vector<OpCase> align_cases() {
  std::vector<OpCase> cases;
  const auto align = [&](const std::string& name, const Shape& x, int64_t rows, std::vector<int64_t> size, double scale, int64_t ratio,
                         bool aligned, bool counted) {
    cases.push_back({.name = "roi_align_" + name, .build = [=](CaseInputs& in) {
                       RoiAlignAttrs attrs;
                       attrs.output_size = size;
                       attrs.spatial_scale = {scale};
                       attrs.sampling_ratio = ratio;
                       attrs.aligned = aligned;
                       const Value image = in.real(x);
                       const Value boxes = boxes_of(in, x[0], rows, 0, 1.3 * static_cast<double>(x[3]) / scale);
                       std::vector<double> counts;
                       for (int64_t n = 0; n < x[0]; ++n) counts.push_back(static_cast<double>(rows - 1 - n));
                       roi_align(image, boxes, attrs, counted ? in.values({x[0]}, counts, DType::kI64) : Value{});
                     }});
  };
  align("two_samples", {2, 3, 8, 9}, 4, {3, 2}, 0.5, 2, false, false);
  align("adaptive", {1, 2, 7, 6}, 5, {2, 2}, 0.25, 0, false, false);
  align("aligned", {1, 20, 6, 7}, 3, {2, 3}, 1, 1, true, false);
  align("count", {2, 2, 5, 6}, 4, {2, 2}, 1, 2, true, true);
  // Regions of 224 x 224 pixels read level 4 (a scale of 1/16), of a quarter of the area the finer level 3; smaller and larger ones the
  // first and the last.
  const auto pyramid = [&](const std::string& name, std::vector<double> scales, std::vector<double> sides, std::vector<double> expected) {
    cases.push_back({.name = "roi_align_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           RoiAlignAttrs attrs;
                           attrs.output_size = {1, 1};
                           attrs.spatial_scale = scales;
                           attrs.sampling_ratio = 1;
                           std::vector<double> boxes;
                           for (const double side : sides)
                             for (const double v : {8.0, 8.0, 8 + side, 8 + side}) boxes.push_back(v);
                           std::vector<Value> levels;  // level i holds 10 (i + 1)
                           for (size_t i = 0; i < scales.size(); ++i) {
                             const auto size = static_cast<int64_t>(512 * scales[i]);
                             levels.push_back(
                                 in.values({1, 1, size, size}, std::vector<double>(static_cast<size_t>(size * size), 10.0 * (i + 1.0))));
                           }
                           const Value regions = in.fixed(in.values({1, static_cast<int64_t>(sides.size()), 4}, boxes));
                           roi_align(levels[0], regions, attrs, {}, {levels.begin() + 1, levels.end()});
                         },
                     .expected = std::move(expected)});
  };
  pyramid("levels", {1.0 / 8, 1.0 / 16, 1.0 / 32}, {111, 112, 223, 224, 447, 448, 8, 480}, {10, 10, 10, 20, 20, 30, 10, 30});
  pyramid("equal_levels", {1.0 / 32, 1.0 / 32}, {64, 448}, {10, 10});
  for (const bool last : {false, true}) {
    cases.push_back({.name = cat("roi_align_", last ? "coarse" : "fine"), .build = [=](CaseInputs& in) {
                       RoiAlignAttrs attrs;
                       attrs.output_size = {2, 3};
                       attrs.spatial_scale = {0.0625, 0.03125};
                       attrs.sampling_ratio = 2;
                       const Value fine = in.real({2, 3, 24, 26}), coarse = in.real({2, 3, 12, 13});
                       const Value boxes = boxes_of(in, 2, 3, 0, last ? 1200 : 500);
                       roi_align(fine, boxes, attrs, in.values({2}, {3, 2}, DType::kI64), {coarse});
                     }});
  }
  return cases;
}

std::vector<OpCase> pool_regions_cases() {
  std::vector<OpCase> cases;
  const auto pool = [&](const std::string& name, const Shape& x, int64_t rows, std::vector<int64_t> size, double scale) {
    cases.push_back({.name = "roi_pool_" + name, .build = [=](CaseInputs& in) {
                       RoiPoolAttrs attrs;
                       attrs.output_size = size;
                       attrs.spatial_scale = scale;
                       roi_pool(in.real(x, {.distinct = true}), boxes_of(in, x[0], rows, 0, 1.3 * static_cast<double>(x[3]) / scale),
                                attrs);
                     }});
  };
  // Rows 1 and 2 of columns 0 and 1, halves rounded away from zero; then a region outside the image.
  cases.push_back({.name = "roi_pool_hand",
                   .build =
                       [](CaseInputs& in) {
                         RoiPoolAttrs attrs;
                         attrs.output_size = {1, 2};
                         const Value boxes = in.fixed(in.values({1, 2, 4}, {0.4, 0.5, 1.4, 2.4, 30, 30, 40, 40}));
                         roi_pool(in.values({1, 1, 3, 3}, {9, 8, 7, 1, 4, 6, 3, 2, 5}), boxes, attrs);
                       },
                   .expected = {3, 4, 0, 0}});
  pool("two_samples", {2, 3, 8, 9}, 4, {3, 2}, 0.5);
  pool("more_bins_than_pixels", {1, 2, 5, 4}, 3, {4, 6}, 1);
  pool("many_channels", {1, 20, 6, 7}, 3, {2, 3}, 0.25);
  const auto position_sensitive = [&](const std::string& name, const Shape& x, std::vector<int64_t> size, double scale, int64_t ratio) {
    cases.push_back({.name = "ps_roi_align_" + name, .build = [=](CaseInputs& in) {
                       PsRoiAlignAttrs attrs;
                       attrs.output_size = size;
                       attrs.spatial_scale = scale;
                       attrs.sampling_ratio = ratio;
                       ps_roi_align(in.real(x), boxes_of(in, x[0], 3, 0, 1.3 * static_cast<double>(x[3]) / scale), attrs);
                     }});
  };
  position_sensitive("two_samples", {2, 12, 8, 9}, {3, 2}, 0.5, 2);
  position_sensitive("adaptive", {1, 4, 7, 6}, {2, 2}, 1, 0);
  return cases;
}

std::vector<OpCase> deform_cases() {
  std::vector<OpCase> cases;
  const auto deform = [&](const std::string& name, const Shape& x, const Shape& weight, int64_t offset_groups, bool extras,
                          const DeformConv2dAttrs& attrs) {
    cases.push_back({.name = "deform_conv2d_" + name, .build = [=](CaseInputs& in) {
                       const Shape y = conv_shape(attrs, x, weight);
                       const int64_t maps = offset_groups * weight[2] * weight[3];
                       // The slope of a sample changes where it meets a pixel.
                       const Value offset = in.real({y[0], 2 * maps, y[2], y[3]}, {.low = -1.9, .high = 1.9, .kinks = {-1, 0, 1}});
                       deform_conv2d(in.real(x), offset, in.weight(weight), attrs, extras ? in.vector(weight[0]) : Value{},
                                     extras ? in.real({y[0], maps, y[2], y[3]}) : Value{});
                     }});
  };
  DeformConv2dAttrs attrs;
  // Offsets of a pixel to the right and half a pixel down.
  cases.push_back({.name = "deform_conv2d_hand",
                   .build =
                       [](CaseInputs& in) {
                         deform_conv2d(in.values({1, 1, 2, 2}, {1, 2, 3, 4}),
                                       in.fixed(in.values({1, 2, 2, 2}, {0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1})), in.values({1, 1, 1, 1}, {2}),
                                       {});
                       },
                   .expected = {6, 0, 4, 0}});
  attrs.padding = {1};
  deform("padded", {2, 3, 5, 4}, {4, 3, 3, 3}, 1, false, attrs);
  attrs.groups = 2;
  attrs.stride = {2, 1};
  attrs.dilation = {1, 2};
  deform("groups_mask_bias", {2, 4, 6, 7}, {6, 2, 2, 3}, 2, true, attrs);
  return cases;
}

}  // namespace

std::vector<OpCase> boxes_cases() {
  std::vector<OpCase> cases;
  // The second box overlaps the first with 8 / 12, the third is elsewhere; the fourth is the first of another class.
  cases.push_back({.name = "nms_hand",
                   .build =
                       [](CaseInputs& in) {
                         const Value boxes = in.values({1, 3, 4}, {0, 0, 10, 1, 2, 0, 12, 1, 20, 20, 30, 30});
                         nms(boxes, in.values({1, 3, 2}, {0.9, 0.1, 0.8, 0.7, 0.3, 0.2}), nms_attrs(0.5, 0.15, 0, 5));
                       },
                   .expected = {0, 3, 4, 5, 0}});
  // Equal scores are visited in the order of their indices.
  cases.push_back({.name = "nms_ties",
                   .build =
                       [](CaseInputs& in) {
                         nms(in.values({1, 3, 4}, {0, 0, 1, 1, 0, 0, 1, 1, 5, 5, 6, 6}), in.values({1, 3, 1}, {0.5, 0.5, 0.5}),
                             nms_attrs(0.5, 0, 0, 3));
                       },
                   .expected = {0, 2, 0}});
  const auto select = [&](const std::string& name, int64_t samples, int64_t rows, int64_t classes, bool own, const NmsAttrs& attrs) {
    cases.push_back({.name = "nms_" + name, .build = [=](CaseInputs& in) {
                       const Value boxes = boxes_of(in, samples, rows, own ? classes : 0, 20);
                       nms(boxes, in.real({samples, rows, classes}, {.low = 0, .high = 1, .distinct = true}), attrs);
                     }});
  };
  select("one_class", 2, 50, 1, false, nms_attrs(0.4, 0, 0, 20));
  select("classes", 1, 60, 7, false, nms_attrs(0.3, 0.3, 0, 300));
  select("own_boxes", 2, 20, 5, true, nms_attrs(0.5, 0.1, 0, 30));
  select("per_class", 1, 80, 3, false, nms_attrs(0.6, 0.05, 9, 100));
  select("none", 1, 10, 2, false, nms_attrs(0.5, 2, 0, 4));
  cases.push_back({.name = "nms_count", .build = [](CaseInputs& in) {
                     const Value boxes = boxes_of(in, 3, 30, 0, 10), scores = in.real({3, 30, 2}, {.low = 0, .high = 1, .distinct = true});
                     nms(boxes, scores, nms_attrs(0.5, 0, 0, 12), in.values({3}, {30, 0, 7}, DType::kI64));
                   }});

  for (const auto& family : {align_cases, pool_regions_cases, deform_cases})
    for (OpCase& c : family()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace galley::test
