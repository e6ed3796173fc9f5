#include "libcore/ops/proposals.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kChosen = "its results are constants for training, as in torchvision";

void check_count(const TensorType& count, int64_t samples) {
  GALLEY_CHECK(count.dtype == DType::kI64 && count.shape == Shape{samples}, "count must be i64 ", Shape{samples}, ", not ", count);
}

TensorType integers(const Shape& shape) {
  TensorType type;
  type.dtype = DType::kI64;
  type.shape = shape;
  return type;
}

std::vector<TensorType> infer_append_objects(const OpContext& c) {
  const TensorType &boxes = c.in(0), &objects = c.in(2), &offsets = c.in(3);
  check_floating(boxes, "boxes");
  GALLEY_CHECK(boxes.shape.rank() == 3 && boxes.shape[2] == 4, "boxes must be [N,P,4], not ", boxes);
  const int64_t samples = boxes.shape[0];
  check_count(c.in(1), samples);
  GALLEY_CHECK(objects.dtype == boxes.dtype && objects.shape.rank() == 2 && objects.shape[1] == 4, "objects must be ", boxes.dtype,
               " [M,4], not ", objects);
  GALLEY_CHECK(offsets.dtype == DType::kI64 && offsets.shape == Shape{samples + 1}, "offsets must be i64 ", Shape{samples + 1}, ", not ",
               offsets);
  TensorType all = boxes;
  all.format = {};
  all.names = {};
  all.shape = {samples, boxes.shape[1] + objects.shape[0], 4};
  return {all, integers({samples})};
}

std::vector<TensorType> infer_sample_labels(const OpContext& c) {
  const TensorType& labels = c.in(0);
  GALLEY_CHECK(labels.dtype == DType::kI64 && labels.shape.rank() == 2, "labels must be i64 [N,R], not ", labels);
  if (c.has(1)) check_count(c.in(1), labels.shape[0]);
  if (c.has(2))
    GALLEY_CHECK(c.in(2).dtype == DType::kI64 && c.in(2).shape == Shape{3}, "rng must be i64 [3] (seed, step, index of sample 0), not ",
                 c.in(2));
  TensorType mask = labels;
  mask.dtype = DType::kBool;
  return {mask};
}

std::vector<TensorType> infer_true_rows(const OpContext& c) {
  const TensorType& mask = c.in(0);
  GALLEY_CHECK(mask.dtype == DType::kBool && mask.shape.rank() == 2, "mask must be bool [N,R], not ", mask);
  return {integers({mask.shape[0], c.attrs<TrueRowsAttrs>().size}), integers({mask.shape[0]})};
}

}  // namespace

void SampleLabelsAttrs::options(OptionVisitor& v) {
  v.option({.name = "size", .doc = "largest number of rows of a sample", .min = 1}, size);
  v.option({.name = "positive_fraction", .doc = "largest share of rows with objects", .min = 0, .max = 1}, positive_fraction);
  v.option({.name = "random", .doc = "draw rows at random; otherwise take the first"}, random);
  v.option({.name = "stream", .doc = "random stream of the operator: a hash of module path and occurrence"}, stream);
}
void TrueRowsAttrs::options(OptionVisitor& v) {
  v.option({.name = "size", .doc = "largest number of positions of a sample", .min = 1, .required = true}, size);
}

const OpDef& append_objects_op() {
  static const OpDef def{.name = "append_objects",
                         .doc = "valid boxes of each sample, and the sample's objects after them",
                         .inputs = {"boxes", Port::index("count"), "objects", Port::index("offsets")},
                         .outputs = {"all", Port::index("all_count")},
                         .infer = infer_append_objects,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"append_objects:2x1000x4+2+64x4+3"}};
  return def;
}

const OpDef& sample_labels_op() {
  static const OpDef def{.name = "sample_labels",
                         .doc = "marks a sample of rows with objects and of background for the losses of a detector",
                         .inputs = {Port::index("labels"), Port::index("count?"), Port::scalar("rng?")},
                         .outputs = {Port::index("mask")},
                         .make_attrs = make_options<SampleLabelsAttrs>,
                         .infer = infer_sample_labels,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"sample_labels:2x217413@i64:size=256"}};
  return def;
}

const OpDef& true_rows_op() {
  static const OpDef def{.name = "true_rows",
                         .doc = "positions of true values in each row",
                         .inputs = {Port::index("mask")},
                         .outputs = {Port::index("index"), Port::index("count")},
                         .make_attrs = make_options<TrueRowsAttrs>,
                         .infer = infer_true_rows,
                         .no_gradient = kChosen,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .cases = {"true_rows:2x2064@bool:size=512"}};
  return def;
}

CountedBoxes append_objects(Value boxes, Value count, Value objects, Value offsets) {
  const Value inputs[] = {boxes, count, objects, offsets};
  const std::vector<Value> outputs = emit_all("append_objects", nullptr, inputs);
  return {outputs[0], outputs[1]};
}

Value sample_labels(Value labels, Value count, Value rng, const SampleLabelsAttrs& attrs) {
  return emit("sample_labels", {labels, count, rng}, attrs);
}

TrueRows true_rows(Value mask, int64_t size) {
  auto attrs = std::make_unique<TrueRowsAttrs>();
  attrs->size = size;
  const Value inputs[] = {mask};
  const std::vector<Value> outputs = emit_all("true_rows", std::move(attrs), inputs);
  return {outputs[0], outputs[1]};
}

}  // namespace galley
