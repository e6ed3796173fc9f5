#include "libcore/ops/detection.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kChosen = "its results are constants for training, as in torchvision";

std::vector<TensorType> infer_grid_boxes(const OpContext& c) {
  const auto& a = c.attrs<GridBoxesAttrs>();
  const size_t levels = a.per_cell.size();
  GALLEY_CHECK(a.grid.size() == 2 * levels, "grid must have 2 values for each of ", levels, " levels, not ", a.grid.size());
  GALLEY_CHECK(a.strides.size() == 2 * levels, "strides must have 2 values for each of ", levels, " levels, not ", a.strides.size());
  int64_t cell = 0, all = 0;
  for (size_t level = 0; level < levels; ++level) {
    cell += a.per_cell[level];
    all += a.grid[2 * level] * a.grid[2 * level + 1] * a.per_cell[level];
  }
  GALLEY_CHECK(std::ssize(a.corners) == 4 * cell, "corners must have 4 values for each of ", cell, " boxes, not ", a.corners.size());
  TensorType y;
  y.shape = {all, 4};
  return {y};
}

std::vector<TensorType> infer_matches(const OpContext& c) {
  const TensorType &anchors = c.in(0), &boxes = c.in(1), &labels = c.in(2), &offsets = c.in(3);
  check_floating(anchors, "anchors");
  GALLEY_CHECK(offsets.dtype == DType::kI64 && offsets.shape.rank() == 1 && offsets.shape[0] >= 1, "offsets must be i64 [N+1], not ",
               offsets);
  const int64_t samples = offsets.shape[0] - 1;
  const int rank = anchors.shape.rank();
  GALLEY_CHECK((rank == 2 || (rank == 3 && anchors.shape[0] == samples)) && anchors.shape[rank - 1] == 4, "anchors must be [A,4] or [",
               samples, ",A,4], not ", anchors);
  GALLEY_CHECK(boxes.dtype == anchors.dtype && boxes.shape.rank() == 2 && boxes.shape[1] == 4,
               "boxes must be [M,4] of the type of anchors ", anchors.dtype, ", not ", boxes);
  GALLEY_CHECK(labels.dtype == DType::kI64 && labels.shape == Shape{boxes.shape[0]}, "labels must be i64 ", Shape{boxes.shape[0]}, ", not ",
               labels);
  TensorType matched;
  matched.dtype = anchors.dtype;
  matched.shape = {samples, anchors.shape[rank - 2], 4};
  TensorType classes;
  classes.dtype = DType::kI64;
  classes.shape = {samples, anchors.shape[rank - 2]};
  return {matched, classes};
}

std::vector<TensorType> infer_match_boxes(const OpContext& c) {
  const auto& a = c.attrs<MatchBoxesAttrs>();
  GALLEY_CHECK(a.low <= a.high, "low ", a.low, " must not exceed high ", a.high);
  return infer_matches(c);
}

std::vector<TensorType> infer_match_centers(const OpContext& c) {
  const auto& a = c.attrs<MatchCentersAttrs>();
  const int64_t anchors = c.in(0).shape.rank() < 2 ? 0 : c.in(0).shape[-2];
  GALLEY_CHECK(a.first <= anchors && a.last <= anchors, "first ", a.first, " and last ", a.last, " must not exceed the anchors ", anchors);
  return infer_matches(c);
}

/// An operation for each anchor; the number of objects that it is compared with depends on the data.
Cost cost_match_boxes(const OpContext& c) { return operand_cost(c, static_cast<double>(c.out(1).elements())); }

std::vector<TensorType> infer_top_mask(const OpContext& c) {
  const TensorType &values = c.in(0), &count = c.in(1);
  check_floating(values, "values");
  GALLEY_CHECK(values.shape.rank() == 2, "values must be [N,R], not ", values);
  GALLEY_CHECK(count.dtype == values.dtype && count.shape == Shape{values.shape[0]}, "count must be ", values.dtype, " ",
               Shape{values.shape[0]}, ", not ", count);
  TensorType mask = values;
  mask.dtype = DType::kBool;
  return {mask};
}

std::vector<TensorType> infer_take_boxes(const OpContext& c) {
  const TensorType &boxes = c.in(0), &scores = c.in(1), &index = c.in(2), &count = c.in(3);
  check_floating(boxes, "boxes");
  GALLEY_CHECK(scores.dtype == boxes.dtype && scores.shape.rank() == 3, "scores must be ", boxes.dtype, " [N,R,K], not ", scores);
  const Shape& s = scores.shape;
  const Shape shared{s[0], s[1], 4}, own{s[0], s[1], s[2], 4};
  GALLEY_CHECK(boxes.shape == shared || boxes.shape == own, "boxes must be ", shared, " or ", own, " for scores ", s, ", not ", boxes);
  GALLEY_CHECK(index.dtype == DType::kI64 && index.shape.rank() == 2 && index.shape[0] == s[0], "index must be i64 [", s[0], ",D], not ",
               index);
  GALLEY_CHECK(count.dtype == DType::kI64 && count.shape == Shape{s[0]}, "count must be i64 ", Shape{s[0]}, ", not ", count);
  TensorType taken, values, labels;
  taken.dtype = values.dtype = boxes.dtype;
  taken.shape = {s[0], index.shape[1], 4};
  values.shape = {s[0], index.shape[1]};
  labels.dtype = DType::kI64;
  labels.shape = values.shape;
  return {taken, values, labels};
}

}  // namespace

void GridBoxesAttrs::options(OptionVisitor& v) {
  v.option({.name = "grid", .doc = "rows and columns of each level", .min = 1}, grid);
  v.option({.name = "strides", .doc = "distances of rows and of columns of each level", .min = 0}, strides);
  v.option({.name = "per_cell", .doc = "boxes of a cell of each level", .min = 1}, per_cell);
  v.option({.name = "corners", .doc = "the boxes of the first cell of each level, x1, y1, x2, y2 each"}, corners);
}

void MatchBoxesAttrs::options(OptionVisitor& v) {
  v.option({.name = "high", .doc = "intersection over union from which on an anchor takes an object", .min = 0, .max = 1}, high);
  v.option({.name = "low", .doc = "intersection over union below which an anchor is background", .min = 0, .max = 1}, low);
  v.choice({.name = "best", .doc = "anchors below the threshold that take an object"}, best, kMatchBestNames);
}

void MatchCentersAttrs::options(OptionVisitor& v) {
  v.option({.name = "radius", .doc = "largest distance of centers, in sizes of the anchor", .min = 0}, radius);
  v.option({.name = "first", .doc = "anchors of the first level", .min = 0}, first);
  v.option({.name = "last", .doc = "anchors of the last level", .min = 0}, last);
}

void TakeBoxesAttrs::options(OptionVisitor& v) {
  v.option({.name = "first_label", .doc = "label of the first class of scores", .min = 0}, first_label);
}

const OpDef& grid_boxes_op() {
  static const OpDef def{.name = "grid_boxes",
                         .doc = "boxes that repeat in every cell of several grids",
                         .outputs = {"boxes"},
                         .make_attrs = make_options<GridBoxesAttrs>,
                         .infer = infer_grid_boxes,
                         .no_gradient = "it has no inputs",
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32};
  return def;
}

const OpDef& match_boxes_op() {
  static const OpDef def{.name = "match_boxes",
                         .doc = "the object that each anchor is compared with in training",
                         .inputs = {"anchors", "boxes", Port::index("labels"), Port::index("offsets")},
                         .outputs = {"matched", Port::index("classes")},
                         .make_attrs = make_options<MatchBoxesAttrs>,
                         .infer = infer_match_boxes,
                         .no_gradient = kChosen,
                         .cost = cost_match_boxes,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"match_boxes:3234x4+64x4+64+9"}};
  return def;
}

const OpDef& match_centers_op() {
  static const OpDef def{.name = "match_centers",
                         .doc = "the object that each anchor is compared with in training, by its center",
                         .inputs = {"anchors", "boxes", Port::index("labels"), Port::index("offsets")},
                         .outputs = {"matched", Port::index("classes")},
                         .make_attrs = make_options<MatchCentersAttrs>,
                         .infer = infer_match_centers,
                         .no_gradient = kChosen,
                         .cost = cost_match_boxes,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"match_centers:3234x4+64x4+64+9"}};
  return def;
}

const OpDef& top_mask_op() {
  static const OpDef def{.name = "top_mask",
                         .doc = "marks the largest values of each row",
                         .inputs = {"values", "count"},
                         .outputs = {Port::index("mask")},
                         .infer = infer_top_mask,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"top_mask:8x3234+8"}};
  return def;
}

const OpDef& take_boxes_op() {
  static const OpDef def{.name = "take_boxes",
                         .doc = "boxes, scores and labels of chosen candidates",
                         .inputs = {"boxes", "scores", Port::index("index"), Port::index("count")},
                         .outputs = {"taken", "values", Port::index("labels")},
                         .make_attrs = make_options<TakeBoxesAttrs>,
                         .infer = infer_take_boxes,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"take_boxes:1x3234x4+1x3234x90+1x300+1"}};
  return def;
}

Value grid_boxes(Graph& graph, const GridBoxesAttrs& attrs) {
  ensure_ops_registered();
  return graph.add_node(find_op("grid_boxes"), std::make_unique<GridBoxesAttrs>(attrs), {}).front();
}

MatchedBoxes match_boxes(Value anchors, Value boxes, Value labels, Value offsets, const MatchBoxesAttrs& attrs) {
  const Value inputs[] = {anchors, boxes, labels, offsets};
  const std::vector<Value> outputs = emit_all("match_boxes", std::make_unique<MatchBoxesAttrs>(attrs), inputs);
  return {outputs[0], outputs[1]};
}

MatchedBoxes match_centers(Value anchors, Value boxes, Value labels, Value offsets, const MatchCentersAttrs& attrs) {
  const Value inputs[] = {anchors, boxes, labels, offsets};
  const std::vector<Value> outputs = emit_all("match_centers", std::make_unique<MatchCentersAttrs>(attrs), inputs);
  return {outputs[0], outputs[1]};
}

Value top_mask(Value values, Value count) { return emit("top_mask", {values, count}); }

TakenBoxes take_boxes(Value boxes, Value scores, Value index, Value count, const TakeBoxesAttrs& attrs) {
  const Value inputs[] = {boxes, scores, index, count};
  const std::vector<Value> outputs = emit_all("take_boxes", std::make_unique<TakeBoxesAttrs>(attrs), inputs);
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace galley
