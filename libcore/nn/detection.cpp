#include "libcore/nn/detection.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

const double kLargestGrowth = std::log(1000.0 / 16);

/// Centers and sizes of boxes, [..,1] each.
struct Centers {
  explicit Centers(Value boxes)
      : w(sub(column(boxes, 2), column(boxes, 0))),
        h(sub(column(boxes, 3), column(boxes, 1))),
        x(add(column(boxes, 0), affine(w, 0.5))),
        y(add(column(boxes, 1), affine(h, 0.5))) {}
  Value w, h, x, y;
};

}  // namespace

Value value_of(const NamedValues& values, std::string_view name) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return found == values.end() ? Value() : found->second;
}

Value column(Value boxes, int64_t i) { return slice(boxes, -1, i, i + 1); }

std::vector<ModelInput> detector_inputs(int64_t height, int64_t width, bool extents) {
  ModelInput image{.name = "input", .shape = {3, height, width}, .names = image_names()};
  ModelInput boxes{.name = std::string(kObjectBoxes), .shape = {4}, .optional = true};
  ModelInput offsets{.name = std::string(kObjectOffsets), .shape = {}, .dtype = DType::kI64, .optional = true};
  ModelInput labels{.name = std::string(kObjectLabels), .shape = {}, .dtype = DType::kI64, .optional = true};
  ModelInput size{.name = std::string(kImageSize), .shape = {2}, .optional = true};
  std::vector<ModelInput> inputs{std::move(image), std::move(boxes), std::move(offsets), std::move(labels), std::move(size)};
  if (extents) inputs.push_back({.name = std::string(kImageExtents), .shape = {2}, .dtype = DType::kI64, .optional = true});
  return inputs;
}

Objects objects_of(const Builder& b, const NamedValues& inputs) {
  Objects objects{value_of(inputs, kObjectBoxes), value_of(inputs, kObjectLabels), value_of(inputs, kObjectOffsets)};
  if (!objects.boxes || !objects.labels || !objects.offsets) objects = {};
  if (b.training() && !objects) {
    throw Error(ErrorCode::kRecipe, "training a detector needs the fields `boxes` and `labels`, which the data do not have")
        .key("data.train.source")
        .suggest("a source with boxes: voc or coco");
  }
  return objects;
}

Value BoxCoder::encode(Value boxes, Value anchors) const {
  const Centers at(boxes), from(anchors);
  return concat({affine(div(sub(at.x, from.x), from.w), xy), affine(div(sub(at.y, from.y), from.h), xy), affine(log(div(at.w, from.w)), wh),
                 affine(log(div(at.h, from.h)), wh)},
                boxes.shape().rank() - 1);
}

Value BoxCoder::decode(Value codes, Value anchors) const {
  const Centers from(anchors);
  const auto most = std::numeric_limits<double>::infinity();
  const Value x = add(mul(affine(column(codes, 0), 1 / xy), from.w), from.x),
              y = add(mul(affine(column(codes, 1), 1 / xy), from.h), from.y);
  const Value w = mul(exp(clamp(affine(column(codes, 2), 1 / wh), -most, kLargestGrowth)), affine(from.w, 0.5));
  const Value h = mul(exp(clamp(affine(column(codes, 3), 1 / wh), -most, kLargestGrowth)), affine(from.h, 0.5));
  return concat({sub(x, w), sub(y, h), add(x, w), add(y, h)}, codes.shape().rank() - 1);
}

ImageSize::ImageSize(const NamedValues& inputs)
    : height(0), width(0), each(value_of(inputs, kImageSize)), extents(value_of(inputs, kImageExtents)) {
  const Shape& image = inputs.front().second.shape();
  height = image[2];
  width = image[3];
}

Value clip_boxes(Value boxes, const ImageSize& size) {
  const int rank = boxes.shape().rank();
  const auto limit = [&](int64_t axis) {  // of each image
    const Value values = cast(slice(size.each, 1, axis, axis + 1), boxes.dtype());
    return reshape(values, rank == 4 ? Shape{boxes.shape()[0], 1, 1, 1} : Shape{boxes.shape()[0], 1, 1});
  };
  const auto clipped = [&](int64_t i) {
    const bool x = i % 2 == 0;
    const Value at = column(boxes, i);
    if (!size.each) return clamp(at, 0, static_cast<double>(x ? size.width : size.height));
    return minimum(clamp(at, 0, std::numeric_limits<double>::infinity()), limit(x ? 1 : 0));
  };
  return concat({clipped(0), clipped(1), clipped(2), clipped(3)}, rank - 1);
}

Value smooth_l1(Value x, Value target, double beta) {
  // With m = min(|d|, beta): m^2 / (2 beta) + |d| - m.
  const Value distance = abs(sub(x, target)), inner = clamp(distance, 0, beta);
  return add(affine(square(inner), 0.5 / beta), sub(distance, inner));
}

Value constant_like(Value x, double value) { return full(x.graph(), {.dtype = x.type().dtype, .shape = {}}, value); }

Value foreground(Value labels) {
  const Value values = cast(labels, DType::kF32);
  return greater(values, constant_like(values, 0));
}

Value count_true(Value mask) {
  const Value one = full(mask.graph(), {.dtype = DType::kF32, .shape = {}}, 1),
              zero = full(mask.graph(), {.dtype = DType::kF32, .shape = {}}, 0);
  return sum(where(mask, one, zero), {1});
}

Value masked_sum(Value x, Value mask) {
  const int rank = x.shape().rank();
  if (rank == 3) mask = unsqueeze(mask, 2);
  const Value kept = where(mask, x, constant_like(x, 0));
  return sum(kept, rank == 3 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1});
}

Value by_anchor(Value logits, int64_t per_anchor) {
  const Shape& s = logits.shape();
  const int64_t anchors = s[1] / per_anchor;
  const Value split = reshape(logits, {s[0], anchors, per_anchor, s[2], s[3]});
  return reshape(permute(split, {0, 3, 4, 1, 2}), {s[0], s[2] * s[3] * anchors, per_anchor});
}

Value without_small(Value boxes, Value scores, double side) {
  const int axis = boxes.shape().rank() - 1;
  const Value shorter = squeeze(minimum(sub(column(boxes, 2), column(boxes, 0)), sub(column(boxes, 3), column(boxes, 1))), axis);
  return where(less(shorter, constant_like(shorter, side)), constant_like(scores, -1), scores);
}

Value first_rows(Value count, int64_t rows) {
  const Value row = cast(iota(count.graph(), DType::kI64, {1, rows}, 1), DType::kF32);
  return less(row, unsqueeze(cast(count, DType::kF32), 1));
}

void add_detections(NamedValues& results, Value boxes, Value scores, const NmsAttrs& attrs, int64_t first_label, Value count) {
  const Nms chosen = nms(boxes, scores, attrs, count);
  TakeBoxesAttrs take;
  take.first_label = first_label;
  const TakenBoxes taken = take_boxes(boxes, scores, chosen.index, chosen.count, take);
  results.emplace_back(kDetectedBoxes, taken.boxes);
  results.emplace_back(kDetectedScores, taken.scores);
  results.emplace_back(kDetectedLabels, taken.labels);
  results.emplace_back(kDetectedCount, chosen.count);
}

}  // namespace galley
