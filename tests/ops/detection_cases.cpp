// Cases of operators of detectors besides nms and roi_align. Hand values follow the rules in ops/detection.h.

#include "libcore/ops/conv_rows.h"
#include "libcore/ops/detection.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/linear_rows.h"
#include "libcore/ops/proposals.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

MatchBoxesAttrs match_attrs(double high, double low, MatchBest best) {
  MatchBoxesAttrs attrs;
  attrs.high = high;
  attrs.low = low;
  attrs.best = best;
  return attrs;
}

/// Boxes [rows,4] of which many overlap, in numbers that float32 holds.
std::vector<double> some_boxes(std::string_view name, int64_t rows, double extent) {
  RandomStream random(7, name);
  std::vector<double> values;
  for (int64_t i = 0; i < rows; ++i) {
    const double x = random.uniform() * extent, y = random.uniform() * extent;
    for (const double v : {x, y, x + extent * (0.1 + 0.4 * random.uniform()), y + extent * (0.1 + 0.4 * random.uniform())})
      values.push_back(static_cast<float>(v));
  }
  return values;
}

std::vector<OpCase> grid_cases() {
  std::vector<OpCase> cases;
  const auto grid = [&](const std::string& name, std::vector<int64_t> cells, std::vector<double> strides, std::vector<int64_t> per_cell,
                        std::vector<double> corners, std::vector<double> expected = {}) {
    cases.push_back({.name = "grid_boxes_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           GridBoxesAttrs attrs;
                           attrs.grid = cells;
                           attrs.strides = strides;
                           attrs.per_cell = per_cell;
                           attrs.corners = corners;
                           grid_boxes(in.graph(), attrs);
                         },
                     .expected = std::move(expected)});
  };
  // Two boxes in each of two columns that are 20 apart.
  grid("hand", {1, 2}, {10, 20}, {2}, {0, 2.5, 20, 7.5, 8, 0, 12, 10}, {0, 2.5, 20, 7.5, 8, 0, 12, 10, 20, 2.5, 40, 7.5, 28, 0, 32, 10});
  // Rows are 7 apart, columns 3; a row comes before the next.
  grid("rows", {2, 2}, {7, 3}, {1}, {-1, -2, 1, 2}, {-1, -2, 1, 2, 2, -2, 4, 2, -1, 5, 1, 9, 2, 5, 4, 9});
  grid("levels", {5, 4, 3, 3, 1, 1}, {61, 64, 100, 90.5, 300, 300}, {2, 1, 1},
       {-5, -5, 5, 5, -8, -3, 8, 3, -30, -31, 30, 31, -100, -90, 100, 90});
  return cases;
}

std::vector<OpCase> match_cases() {
  std::vector<OpCase> cases;
  // Anchors [0,10], [6,16], [12,22] and [20,30] on a line. The object [0,8] overlaps them by 0.8, 2/16, 0 and 0; [11,21] by 0, 5/15, 9/11
  // and 1/19: the third anchor takes it, and the second is neither from 0.3 to 0.5.
  const std::vector<double> anchors{0, 0, 10, 1, 6, 0, 16, 1, 12, 0, 22, 1, 20, 0, 30, 1}, objects{0, 0, 8, 1, 11, 0, 21, 1};
  const auto hand = [&](const std::string& name, const MatchBoxesAttrs& attrs, std::vector<double> boxes, std::vector<double> expected) {
    cases.push_back({.name = "match_boxes_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           const auto count = static_cast<int64_t>(boxes.size()) / 4;
                           std::vector<double> labels;
                           for (int64_t i = 0; i < count; ++i) labels.push_back(static_cast<double>(i + 5));
                           match_boxes(in.fixed(in.values({4, 4}, anchors)), in.fixed(in.values({count, 4}, boxes)),
                                       in.values({count}, labels, DType::kI64),
                                       in.values({2}, {0, static_cast<double>(count)}, DType::kI64), attrs);
                         },
                     .expected = std::move(expected)});
  };
  hand("hand", match_attrs(0.5, 0.3, MatchBest::kNo), objects, {0, 0, 8, 1, 6, 0, 16, 1, 11, 0, 21, 1, 20, 0, 30, 1});
  // No anchor exceeds the threshold; the best anchor of each object takes it, of two objects the later.
  hand("every_box", match_attrs(0.95, 0.95, MatchBest::kEveryBox), {0, 0, 8, 1, 1, 0, 9, 1},
       {1, 0, 9, 1, 6, 0, 16, 1, 12, 0, 22, 1, 20, 0, 30, 1});
  // The third anchor is the best of the second object, but overlaps the first object more: it takes that one.
  hand("low_quality", match_attrs(0.95, 0.9, MatchBest::kLowQuality), {12, 0, 21, 1, 17, 0, 19, 1},
       {0, 0, 10, 1, 6, 0, 16, 1, 12, 0, 21, 1, 20, 0, 30, 1});
  // An object that no anchor overlaps: all anchors without an overlap are its best.
  hand("elsewhere", match_attrs(0.7, 0.3, MatchBest::kLowQuality), {50, 50, 60, 60},
       {50, 50, 60, 60, 50, 50, 60, 60, 50, 50, 60, 60, 50, 50, 60, 60});
  const auto random = [&](const std::string& name, int64_t samples, int64_t rows, std::vector<double> offsets, bool own,
                          const MatchBoxesAttrs& attrs) {
    cases.push_back({.name = "match_boxes_" + name, .build = [=](CaseInputs& in) {
                       const int64_t capacity = samples * 6;
                       const Shape shape = own ? Shape{samples, rows, 4} : Shape{rows, 4};
                       const Value anchors = in.fixed(in.values(shape, some_boxes("anchors " + name, own ? samples * rows : rows, 20)));
                       const Value boxes = in.fixed(in.values({capacity, 4}, some_boxes("objects " + name, capacity, 20)));
                       match_boxes(anchors, boxes, in.integers({capacity}, 1, 9), in.values({samples + 1}, offsets, DType::kI64), attrs);
                     }});
  };
  random("several", 3, 40, {0, 4, 4, 10}, false, match_attrs(0.5, 0.5, MatchBest::kNo));
  random("ssd", 3, 60, {0, 6, 6, 8}, false, match_attrs(0.5, 0.5, MatchBest::kEveryBox));
  random("rpn", 2, 50, {0, 5, 9}, false, match_attrs(0.7, 0.3, MatchBest::kLowQuality));
  random("own_anchors", 2, 30, {0, 3, 5}, true, match_attrs(0.5, 0.4, MatchBest::kLowQuality));
  random("no_objects", 2, 10, {0, 0, 0}, false, match_attrs(0.5, 0.5, MatchBest::kEveryBox));
  return cases;
}

std::vector<OpCase> center_cases() {
  std::vector<OpCase> cases;
  const auto attrs_of = [](double radius, int64_t first, int64_t last) {
    MatchCentersAttrs attrs;
    attrs.radius = radius;
    attrs.first = first;
    attrs.last = last;
    return attrs;
  };
  // Anchors of size 8 at 0, 10 and 40, and of size 16 at 20, the last level. Only the second and the last are near the center 20 of the
  // object [-4,44] x [-20,20]. The second takes [8,14] x [-4,4], which is smaller; for the last the sides, at most 24 away, are too near.
  cases.push_back({.name = "match_centers_hand",
                   .build =
                       [=](CaseInputs& in) {
                         const Value anchors = in.fixed(in.values({4, 4}, {-4, -4, 4, 4, 6, -4, 14, 4, 36, -4, 44, 4, 12, -8, 28, 8}));
                         match_centers(anchors, in.fixed(in.values({2, 4}, {-4, -20, 44, 20, 8, -4, 14, 4})),
                                       in.values({2}, {3, 7}, DType::kI64), in.values({2}, {0, 2}, DType::kI64), attrs_of(1.5, 3, 1));
                       },
                   .expected = {-4, -4, 4, 4, 8, -4, 14, 4, 36, -4, 44, 4, 12, -8, 28, 8}});
  // The same with a first level of all anchors: the last one is not bound from below, and takes the large object.
  cases.push_back({.name = "match_centers_levels",
                   .build =
                       [=](CaseInputs& in) {
                         const Value anchors = in.fixed(in.values({4, 4}, {-4, -4, 4, 4, 6, -4, 14, 4, 36, -4, 44, 4, 12, -8, 28, 8}));
                         match_centers(anchors, in.fixed(in.values({2, 4}, {-4, -20, 44, 20, 8, -4, 14, 4})),
                                       in.values({2}, {3, 7}, DType::kI64), in.values({2}, {0, 2}, DType::kI64), attrs_of(1.5, 4, 1));
                       },
                   .expected = {-4, -4, 4, 4, 8, -4, 14, 4, 36, -4, 44, 4, -4, -20, 44, 20}});
  const auto random = [&](const std::string& name, int64_t samples, std::vector<double> offsets, bool own, double scale) {
    cases.push_back({.name = "match_centers_" + name, .build = [=](CaseInputs& in) {
                       const int64_t rows = 60, capacity = samples * 6;
                       const Shape shape = own ? Shape{samples, rows, 4} : Shape{rows, 4};
                       const Value anchors = in.fixed(in.values(shape, some_boxes("centers " + name, own ? samples * rows : rows, 4)));
                       const Value boxes = in.fixed(in.values({capacity, 4}, some_boxes("objects " + name, capacity, scale)));
                       match_centers(anchors, boxes, in.integers({capacity}, 1, 9), in.values({samples + 1}, offsets, DType::kI64),
                                     attrs_of(4, 20, 20));
                     }});
  };
  random("several", 3, {0, 4, 4, 10}, false, 5);
  random("own_anchors", 2, {0, 6, 12}, true, 6);
  random("no_objects", 2, {0, 0, 0}, false, 5);
  return cases;
}

SampleLabelsAttrs sample_attrs(int64_t size, double fraction, bool random) {
  SampleLabelsAttrs attrs;
  attrs.size = size;
  attrs.positive_fraction = fraction;
  attrs.random = random;
  attrs.stream = 77;
  return attrs;
}

std::vector<OpCase> proposal_cases() {
  std::vector<OpCase> cases;
  const auto ints = [](CaseInputs& in, const Shape& shape, const std::vector<double>& values) {
    return in.values(shape, values, DType::kI64);
  };
  // One valid row and two objects; no valid row and one object.
  cases.push_back({.name = "append_objects_hand",
                   .build =
                       [=](CaseInputs& in) {
                         const Value boxes = in.fixed(in.values({2, 2, 4}, {1, 2, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}));
                         append_objects(boxes, ints(in, {2}, {1, 0}), in.fixed(in.values({3, 4}, {5, 6, 7, 8, 10, 11, 12, 13, 0, 1, 2, 3})),
                                        ints(in, {3}, {0, 2, 3}));
                       },
                   .expected = {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0,
                                0, 1, 2, 3, 0, 0, 0, 0, 0,  0,  0,  0,  0, 0, 0, 0, 0, 0, 0, 0}});
  cases.push_back({.name = "append_objects_random", .build = [=](CaseInputs& in) {
                     append_objects(in.fixed(in.real({3, 5, 4})), ints(in, {3}, {5, 0, 2}), in.fixed(in.real({7, 4})),
                                    ints(in, {4}, {0, 3, 3, 6}));
                   }});
  const auto sample = [&](const std::string& name, const Shape& shape, std::vector<double> labels, std::vector<double> count, bool keyed,
                          const SampleLabelsAttrs& attrs, std::vector<double> expected) {
    cases.push_back({.name = "sample_labels_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           const Value x = labels.empty() ? in.integers(shape, -1, 3) : ints(in, shape, labels);
                           sample_labels(x, count.empty() ? Value() : ints(in, {shape[0]}, count),
                                         keyed ? ints(in, {3}, {5, 6, 7}) : Value(), attrs);
                         },
                     .expected = std::move(expected)});
  };
  // At most two of four rows have objects; one that is neither does not count. Missing objects are filled up by background.
  sample("first", {2, 6}, {1, 0, -1, 4, 2, 0, 0, -1, 0, 3, 0, 0}, {}, false, sample_attrs(4, 0.5, false),
         {1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0});
  // Background is not filled up by objects.
  sample("few_background", {1, 5}, {1, 1, 1, 0, 1}, {}, false, sample_attrs(4, 0.5, false), {1, 1, 0, 1, 0});
  sample("count", {2, 4}, {0, 0, 1, 1, 1, 0, 0, 1}, {3, 0}, false, sample_attrs(4, 0.5, false), {1, 1, 1, 0, 0, 0, 0, 0});
  sample("random", {3, 301}, {}, {}, true, sample_attrs(40, 0.3, true), {});
  sample("without_key", {2, 99}, {}, {99, 50}, false, sample_attrs(16, 0.5, true), {});
  cases.push_back({.name = "true_rows_hand",
                   .build = [](CaseInputs& in) { true_rows(in.values({2, 5}, {0, 1, 1, 0, 1, 1, 0, 0, 0, 0}, DType::kBool), 2); },
                   .expected = {1, 2, 0, 0}});
  cases.push_back(
      {.name = "true_rows_all", .build = [](CaseInputs& in) { true_rows(in.values({1, 7}, {1, 0, 1, 1, 0, 0, 1}, DType::kBool), 9); }});
  const auto rows = [&](const std::string& name, const Shape& x, int64_t out, std::vector<double> count, bool bias, Activation activation) {
    cases.push_back({.name = "linear_rows_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           LinearAttrs attrs;
                           attrs.activation = activation;
                           const Value y = in.real(x), weight = in.weight({out, x[2]});
                           linear_rows(y, weight, bias ? in.vector(out) : Value(), ints(in, {x[0]}, count), attrs);
                         },
                     .forward_only = true});
  };
  rows("several", {3, 20, 17}, 5, {20, 0, 7}, true, Activation::kRelu);
  rows("one", {1, 100, 64}, 48, {31}, true, Activation::kNone);
  rows("few", {2, 3, 8}, 4, {1, 3}, false, Activation::kNone);
  return cases;
}

std::vector<OpCase> image_row_cases() {
  std::vector<OpCase> cases;
  const auto ints = [](CaseInputs& in, const Shape& shape, const std::vector<double>& values) {
    return in.values(shape, values, DType::kI64);
  };
  const auto images = [&](const std::string& name, const Shape& x, const Shape& weight, std::vector<double> count, bool bias) {
    cases.push_back({.name = "conv2d_rows_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           Conv2dAttrs attrs;
                           attrs.padding = {1};
                           attrs.activation = bias ? Activation::kRelu : Activation::kNone;
                           const Value y = in.real(x), w = in.weight(weight);
                           conv2d_rows(y, w, bias ? in.vector(weight[0]) : Value(), ints(in, {std::ssize(count)}, count), attrs);
                         },
                     .forward_only = true});
  };
  images("several", {9, 5, 6, 7}, {4, 5, 3, 3}, {3, 0, 2}, true);
  images("parts", {20, 3, 5, 5}, {8, 3, 3, 3}, {17}, false);            // 3 images a time: the last run begins at image 15
  images("many_channels", {5, 32, 12, 12}, {32, 32, 3, 3}, {4}, true);  // for Winograd's form
  cases.push_back({.name = "conv2d_backward_data_rows",
                   .build =
                       [=](CaseInputs& in) {
                         Conv2dBackwardDataAttrs attrs;
                         attrs.stride = {2};
                         attrs.input_size = {10, 12};
                         const Value x = in.real({22, 6, 5, 6}), w = in.weight({6, 4, 2, 2});
                         conv2d_backward_data_rows(x, w, ints(in, {2}, {10, 1}), attrs);
                       },
                   .forward_only = true});
  return cases;
}

std::vector<OpCase> instance_cases() {
  std::vector<OpCase> cases;
  const auto ints = [](CaseInputs& in, const Shape& shape, const std::vector<double>& values) {
    return in.values(shape, values, DType::kI64);
  };
  // The left half of the image. Two samples of a cell along each axis: at 0.5 and 1.5, where the second is between 1 and 0. The second
  // region has no object.
  cases.push_back({.name = "mask_targets_hand",
                   .build =
                       [=](CaseInputs& in) {
                         const Value masks = in.values({1, 4, 4}, {1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0}, DType::kU8);
                         mask_targets(masks, in.fixed(in.values({1, 2, 4}, {0, 0, 4, 4, 0, 0, 4, 4})), ints(in, {1, 2}, {0, -1}), 2);
                       },
                   .expected = {0.75, 0, 0.75, 0, 0, 0, 0, 0}});
  // Boxes that leave the image, and one without area.
  cases.push_back({.name = "mask_targets_random", .build = [=](CaseInputs& in) {
                     std::vector<double> boxes = some_boxes("mask targets", 10, 20);
                     boxes[0] = boxes[2];
                     boxes[1] = boxes[3];
                     for (size_t i = 4; i < 8; ++i) boxes[i] -= 9;
                     mask_targets(in.quantized(DType::kU8, {3, 17, 23}, 0, 1), in.fixed(in.values({2, 5, 4}, boxes)),
                                  ints(in, {2, 5}, {0, 2, 1, -1, 3, 2, 2, 0, 1, 0}), 5);
                   }});
  // Cells of 5 pixels. The second point is on the last corner; the fourth is not visible, the last two are outside.
  cases.push_back({.name = "keypoint_cells_hand",
                   .build =
                       [=](CaseInputs& in) {
                         const std::vector<double> points{10, 20, 1, 30, 40, 2, 14.5, 25, 1, 30, 25, 0, 31, 25, 1, 9.5, 25, 1};
                         keypoint_cells(in.fixed(in.values({1, 6, 3}, points)),
                                        in.fixed(in.values({1, 2, 4}, {10, 20, 30, 40, 10, 20, 30, 40})), ints(in, {1, 2}, {0, -1}), 4);
                       },
                   .expected = {0, 15, 4, -100, -100, -100, -100, -100, -100, -100, -100, -100}});
  cases.push_back({.name = "keypoint_cells_random", .build = [=](CaseInputs& in) {
                     keypoint_cells(in.fixed(in.real({4, 7, 3}, {.low = -2, .high = 25})),
                                    in.fixed(in.values({2, 6, 4}, some_boxes("keypoint cells", 12, 20))), in.integers({2, 6}, -1, 5), 9);
                   }});
  // A map of 2 x 2 cells as one pixel: along each axis the weights of the second cell are 0.59375 - 0.09375.
  cases.push_back({.name = "locate_keypoints_hand",
                   .build =
                       [=](CaseInputs& in) {
                         locate_keypoints(in.fixed(in.values({1, 2, 1, 2, 2}, {0, 0, 0, 1, 0, 0, 0, 1})),
                                          in.fixed(in.values({1, 2, 4}, {10, 20, 11, 21, 10, 20, 11, 21})), ints(in, {1}, {1}));
                       },
                   .expected = {10.5, 20.5, 0.25, 0, 0, 0}});
  for (const double extent : {3.0, 20.0, 90.0}) {
    const std::string name = cat(static_cast<int>(extent));
    cases.push_back({.name = "locate_keypoints_" + name, .build = [=](CaseInputs& in) {
                       const Value boxes = in.fixed(in.values({2, 4, 4}, some_boxes("heat " + name, 8, extent)));
                       locate_keypoints(in.fixed(in.real({2, 4, 3, 7, 9})), boxes, ints(in, {2}, {4, 2}));
                     }});
  }
  return cases;
}

}  // namespace

std::vector<OpCase> detection_cases() {
  std::vector<OpCase> cases = grid_cases();
  for (OpCase& c : instance_cases()) cases.push_back(std::move(c));
  for (OpCase& c : proposal_cases()) cases.push_back(std::move(c));
  for (OpCase& c : image_row_cases()) cases.push_back(std::move(c));
  for (OpCase& c : center_cases()) cases.push_back(std::move(c));
  for (OpCase& c : match_cases()) cases.push_back(std::move(c));
  const double infinity = std::numeric_limits<double>::infinity();
  const auto mask = [&](const std::string& name, const Shape& shape, std::vector<double> values, std::vector<double> count,
                        std::vector<double> expected) {
    cases.push_back({.name = "top_mask_" + name,
                     .build =
                         [=](CaseInputs& in) {
                           const Value x =
                               values.empty() ? in.fixed(in.real(shape, {.distinct = true})) : in.fixed(in.values(shape, values));
                           top_mask(x, in.fixed(in.values({shape[0]}, count)));
                         },
                     .expected = std::move(expected)});
  };
  // Of equal values the first; -infinity is the last; a fraction of a row counts as a row.
  mask("hand", {2, 4}, {3, 5, 5, 1, 2, 7, -infinity, 7}, {2, 2.5}, {0, 1, 1, 0, 1, 1, 0, 1});
  mask("ties", {1, 4}, {4, 4, 4, 4}, {2}, {1, 1, 0, 0});
  mask("all_and_none", {3, 2}, {1, 2, 3, 4, 5, 6}, {0, 5, -1}, {0, 0, 1, 1, 0, 0});
  mask("rows", {3, 57}, {}, {30, 56, 1}, {});
  cases.push_back({.name = "take_boxes_hand",
                   .build =
                       [](CaseInputs& in) {
                         TakeBoxesAttrs attrs;
                         attrs.first_label = 1;
                         const Value boxes = in.fixed(in.values({1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}));
                         take_boxes(boxes, in.fixed(in.values({1, 2, 3}, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6})),
                                    in.values({1, 3}, {4, 1, 0}, DType::kI64), in.values({1}, {2}, DType::kI64), attrs);
                       },
                   .expected = {5, 6, 7, 8, 1, 2, 3, 4, 0, 0, 0, 0}});
  for (const bool own : {false, true}) {
    cases.push_back({.name = cat("take_boxes_", own ? "own" : "shared"), .build = [=](CaseInputs& in) {
                       const Shape shape = own ? Shape{3, 5, 4, 4} : Shape{3, 5, 4};
                       const Value boxes = in.fixed(in.real(shape)), scores = in.fixed(in.real({3, 5, 4}));
                       take_boxes(boxes, scores, in.integers({3, 6}, 0, 20), in.values({3}, {6, 0, 3}, DType::kI64));
                     }});
  }
  return cases;
}

}  // namespace galley::test
