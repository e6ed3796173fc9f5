#include "libcore/ops/instances.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kChosen = "its results are constants for training, as in torchvision";

void check_regions(const TensorType& boxes, const TensorType& object) {
  check_floating(boxes, "boxes");
  GALLEY_CHECK(boxes.shape.rank() == 3 && boxes.shape[2] == 4, "boxes must be [N,R,4], not ", boxes);
  const Shape rows{boxes.shape[0], boxes.shape[1]};
  GALLEY_CHECK(object.dtype == DType::kI64 && object.shape == rows, "object must be i64 ", rows, ", not ", object);
}

std::vector<TensorType> infer_mask_targets(const OpContext& c) {
  const TensorType &masks = c.in(0), &boxes = c.in(1);
  GALLEY_CHECK(masks.dtype == DType::kU8 && masks.shape.rank() == 3, "masks must be u8 [M,H,W], not ", masks);
  check_regions(boxes, c.in(2));
  const int64_t size = c.attrs<MaskTargetsAttrs>().size;
  TensorType targets;
  targets.dtype = boxes.dtype;
  targets.shape = {boxes.shape[0], boxes.shape[1], size, size};
  return {targets};
}

std::vector<TensorType> infer_keypoint_cells(const OpContext& c) {
  const TensorType &keypoints = c.in(0), &boxes = c.in(1);
  check_regions(boxes, c.in(2));
  GALLEY_CHECK(keypoints.dtype == boxes.dtype && keypoints.shape.rank() == 3 && keypoints.shape[2] == 3,
               "keypoints must be [M,K,3] of the type of boxes ", boxes.dtype, ", not ", keypoints);
  TensorType cells;
  cells.dtype = DType::kI64;
  cells.shape = {boxes.shape[0], boxes.shape[1], keypoints.shape[1]};
  return {cells};
}

std::vector<TensorType> infer_locate_keypoints(const OpContext& c) {
  const TensorType &heat = c.in(0), &boxes = c.in(1), &count = c.in(2);
  check_floating(heat, "heat");
  GALLEY_CHECK(heat.shape.rank() == 5, "heat must be [N,R,K,h,w], not ", heat);
  const Shape regions{heat.shape[0], heat.shape[1], 4};
  GALLEY_CHECK(boxes.dtype == heat.dtype && boxes.shape == regions, "boxes must be ", heat.dtype, " ", regions, ", not ", boxes);
  GALLEY_CHECK(count.dtype == DType::kI64 && count.shape == Shape{heat.shape[0]}, "count must be i64 ", Shape{heat.shape[0]}, ", not ",
               count);
  TensorType points;
  points.dtype = heat.dtype;
  points.shape = {heat.shape[0], heat.shape[1], heat.shape[2], 3};
  return {points};
}

}  // namespace

void MaskTargetsAttrs::options(OptionVisitor& v) { v.option({.name = "size", .doc = "rows and columns of the targets", .min = 1}, size); }
void KeypointCellsAttrs::options(OptionVisitor& v) { v.option({.name = "size", .doc = "rows and columns of cells", .min = 1}, size); }

const OpDef& mask_targets_op() {
  static const OpDef def{.name = "mask_targets",
                         .doc = "the masks of objects in regions",
                         .inputs = {Port::index("masks"), "boxes", Port::index("object")},
                         .outputs = {"targets"},
                         .make_attrs = make_options<MaskTargetsAttrs>,
                         .infer = infer_mask_targets,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"mask_targets:16x800x1088@u8+2x128x4+2x128@i64"}};
  return def;
}

const OpDef& keypoint_cells_op() {
  static const OpDef def{.name = "keypoint_cells",
                         .doc = "the cells of regions that hold the key points of objects",
                         .inputs = {"keypoints", "boxes", Port::index("object")},
                         .outputs = {Port::index("cells")},
                         .make_attrs = make_options<KeypointCellsAttrs>,
                         .infer = infer_keypoint_cells,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"keypoint_cells:16x17x3+2x128x4+2x128@i64"}};
  return def;
}

const OpDef& locate_keypoints_op() {
  static const OpDef def{.name = "locate_keypoints",
                         .doc = "key points at the largest values of heat maps, resized to their regions",
                         .inputs = {"heat", "boxes", Port::index("count")},
                         .outputs = {"points"},
                         .infer = infer_locate_keypoints,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"locate_keypoints:1x100x17x56x56+1x100x4+1@i64"}};
  return def;
}

Value mask_targets(Value masks, Value boxes, Value object, int64_t size) {
  MaskTargetsAttrs attrs;
  attrs.size = size;
  return emit("mask_targets", {masks, boxes, object}, attrs);
}

Value keypoint_cells(Value keypoints, Value boxes, Value object, int64_t size) {
  KeypointCellsAttrs attrs;
  attrs.size = size;
  return emit("keypoint_cells", {keypoints, boxes, object}, attrs);
}

Value locate_keypoints(Value heat, Value boxes, Value count) { return emit("locate_keypoints", {heat, boxes, count}); }

}  // namespace galley
