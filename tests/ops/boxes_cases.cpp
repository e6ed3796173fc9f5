// Cases of nms and roi_align.

#include "libcore/ops/nms.h"
#include "libcore/ops/roi_align.h"
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

  const auto align = [&](const std::string& name, const Shape& x, int64_t rows, std::vector<int64_t> size, double scale, int64_t ratio,
                         bool aligned, bool counted) {
    cases.push_back({.name = "roi_align_" + name, .build = [=](CaseInputs& in) {
                       RoiAlignAttrs attrs;
                       attrs.output_size = size;
                       attrs.spatial_scale = scale;
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
  return cases;
}

}  // namespace galley::test
