#include "libcore/ops/nms.h"

#include "libcore/ops/conv_rows.h"
#include "libcore/ops/detection.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/linear_rows.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  const auto& attrs = c.attrs<NmsAttrs>();
  const TensorType &boxes = c.in(0), &scores = c.in(1);
  check_floating(boxes, "boxes");
  check_floating(scores, "scores");
  GALLEY_CHECK(scores.shape.rank() == 3, "scores must be [N,R,K], not ", scores);
  const Shape& s = scores.shape;
  const Shape shared{s[0], s[1], 4}, own{s[0], s[1], s[2], 4};
  GALLEY_CHECK(boxes.shape == shared || boxes.shape == own, "boxes must be ", shared, " or ", own, " for scores ", s, ", not ", boxes);
  if (c.has(2)) {
    GALLEY_CHECK(c.in(2).dtype == DType::kI64 && c.in(2).shape == Shape{s[0]}, "count must be i64 ", Shape{s[0]}, ", not ", c.in(2));
  }
  TensorType index;
  index.dtype = DType::kI64;
  index.shape = {s[0], attrs.max_output};
  TensorType count = index;
  count.shape = {s[0]};
  return {index, count};
}

/// A comparison with the threshold for each score; the boxes that are visited depend on the data.
Cost cost(const OpContext& c) { return operand_cost(c, static_cast<double>(c.in(1).elements())); }

}  // namespace

void NmsAttrs::options(OptionVisitor& v) {
  v.option({.name = "iou_threshold", .doc = "boxes that overlap a better one by more are left out", .min = 0, .max = 1}, iou_threshold);
  v.option({.name = "max_output", .doc = "largest number of chosen boxes per sample", .min = 1}, max_output);
  v.option({.name = "score_threshold", .doc = "boxes with at most this score are left out"}, score_threshold);
  v.option({.name = "per_class", .doc = "number of best boxes of a class that are considered; 0: all", .min = 0}, per_class);
}

const OpDef& nms_op() {
  static const OpDef def{.name = "nms",
                         .doc = "the best boxes of each class, without those that overlap a better one",
                         .inputs = {"boxes", "scores", Port::index("count?")},
                         .outputs = {Port::index("index"), Port::index("count")},
                         .make_attrs = make_options<NmsAttrs>,
                         .infer = infer,
                         .no_gradient = "its results are constants for training, as in torchvision",
                         .cost = cost,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"nms:1x3234x4+1x3234x91:iou_threshold=0.55,max_output=300,score_threshold=0.9,per_class=300"}};
  return def;
}

Nms nms(Value boxes, Value scores, const NmsAttrs& attrs, Value count) {
  const Value inputs[] = {boxes, scores, count};
  const std::vector<Value> outputs = emit_all("nms", std::make_unique<NmsAttrs>(attrs), inputs);
  return {outputs[0], outputs[1]};
}

OpTable nms_ops() {
  return {&nms_op(),          &grid_boxes_op(),     &match_boxes_op(),      &match_centers_op(), &top_mask_op(),
          &take_boxes_op(),   &append_objects_op(), &sample_labels_op(),    &true_rows_op(),     &linear_rows_op(),
          &mask_targets_op(), &keypoint_cells_op(), &locate_keypoints_op(), &conv2d_rows_op(),   &conv2d_backward_data_rows_op()};
}

}  // namespace galley
