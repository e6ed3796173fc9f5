#include "libcore/ops/loss.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

TensorType scalar_of(DType dtype) {
  TensorType type;
  type.dtype = dtype;
  return type;
}

/// The shape [N,C,...] without C.
Shape without_channels(const Shape& logits) {
  Shape shape;
  for (int axis = 0; axis < logits.rank(); ++axis) {
    if (axis != 1) shape.push_back(logits[axis]);
  }
  return shape;
}

void check_cross_entropy(const TensorType& logits, const TensorType& target, const TensorType* weight, const CrossEntropyAttrs& attrs) {
  check_floating(logits, "logits");
  GALLEY_CHECK(logits.shape.rank() >= 2, "logits must be [N,C,...], not ", logits.shape);
  GALLEY_CHECK(attrs.label_smoothing >= 0 && attrs.label_smoothing <= 1, "label_smoothing must be in 0..1, not ", attrs.label_smoothing);
  if (is_floating(target.dtype)) {
    GALLEY_CHECK(target.shape == logits.shape && target.dtype == logits.dtype, "class probabilities must have the type of the logits, ",
                 logits, ", not ", target);
  } else {
    check_integer(target, "target");
    GALLEY_CHECK(target.shape == without_channels(logits.shape), "class indices must be ", without_channels(logits.shape), " for logits ",
                 logits.shape, ", not ", target.shape);
  }
  if (weight != nullptr)
    GALLEY_CHECK(weight->shape == Shape({logits.shape[1]}), "class_weight must be [", logits.shape[1], "], not ", weight->shape);
}

std::vector<TensorType> infer_cross_entropy(const OpContext& c) {
  const auto& attrs = c.attrs<CrossEntropyAttrs>();
  check_cross_entropy(c.in(0), c.in(1), c.has(2) ? &c.in(2) : nullptr, attrs);
  TensorType loss = scalar_of(c.in(0).dtype);
  if (attrs.reduction == Reduction::kNone) loss.shape = without_channels(c.in(0).shape);
  return {loss};
}

std::vector<TensorType> infer_cross_entropy_backward(const OpContext& c) {
  check_cross_entropy(c.in(1), c.in(2), c.has(3) ? &c.in(3) : nullptr, c.attrs<CrossEntropyAttrs>());
  return {c.in(1)};
}

IndexRange classes_of_targets(const OpContext& c) { return {c.in(0).shape[1], "classes", c.attrs<CrossEntropyAttrs>().ignore_index}; }

std::vector<TensorType> infer_elementwise_loss(const OpContext& c) {
  check_floating(c.in(0), "x");
  check_like(c.in(1), "target", c.in(0), "x");
  if (c.has(2)) check_like(c.in(2), "weight", c.in(0), "x");
  return {c.attrs<LossAttrs>().reduction == Reduction::kNone ? c.in(0) : scalar_of(c.in(0).dtype)};
}

/// The gradient of a reduction for one element: a scalar that broadcasts, or the array itself.
Value spread(Value grad, Value x, Reduction reduction) {
  if (reduction != Reduction::kMean) return grad;
  return affine(grad, x.type().elements() > 0 ? 1.0 / static_cast<double>(x.type().elements()) : 0.0);
}

void mse_gradient(GradientBuilder& g) {
  const Value grad = spread(g.grad(), g.in(0), g.attrs<LossAttrs>().reduction);
  const Value dx = mul(affine(sub(g.in(0), g.in(1)), 2), grad);
  if (g.wants(0)) g.set(0, dx);
  if (g.wants(1)) g.set(1, neg(dx));
}

void bce_gradient(GradientBuilder& g) {
  Value grad = spread(g.grad(), g.in(0), g.attrs<LossAttrs>().reduction);
  if (g.in(2)) grad = mul(g.in(2), grad);
  if (g.wants(0)) g.set(0, mul(sub(sigmoid(g.in(0)), g.in(1)), grad));
  if (g.wants(1)) g.set(1, mul(neg(g.in(0)), grad));
}

}  // namespace

void CrossEntropyAttrs::options(OptionVisitor& v) {
  v.option({.name = "label_smoothing", .doc = "fraction of the target that is spread over all classes", .min = 0, .max = 1},
           label_smoothing);
  v.option({.name = "ignore_index", .doc = "target index that is ignored"}, ignore_index);
  v.choice({.name = "reduction", .doc = "mean, sum or none"}, reduction, kReductionNames);
}
void LossAttrs::options(OptionVisitor& v) { v.choice({.name = "reduction", .doc = "mean, sum or none"}, reduction, kReductionNames); }

const OpDef& cross_entropy_op() {
  static const OpDef def{.name = "cross_entropy",
                         .doc = "negative log likelihood of softmax(logits), as torch.nn.functional.cross_entropy",
                         .inputs = {"logits", Port::index("target"), Port::statistics("class_weight?")},
                         .outputs = {"loss"},
                         .make_attrs = make_options<CrossEntropyAttrs>,
                         .infer = infer_cross_entropy,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0))
                                 g.set(0, cross_entropy_backward(g.grad(), g.in(0), g.in(1), g.in(2), g.attrs<CrossEntropyAttrs>()));
                             },
                         .cost = input_cost<5>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::cross_entropy,
                         .index_range = classes_of_targets,
                         .indices = 1,
                         .cases = {"cross_entropy:64x1000+64@i64"}};
  return def;
}
const OpDef& cross_entropy_backward_op() {
  static const OpDef def{.name = "cross_entropy_backward",
                         .doc = "gradient of cross_entropy for the logits",
                         .inputs = {"grad", "logits", Port::index("target"), Port::statistics("class_weight?")},
                         .outputs = {"dlogits"},
                         .make_attrs = make_options<CrossEntropyAttrs>,
                         .infer = infer_cross_entropy_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = elementwise_cost<6>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .may_reuse = {{0, 1}},
                         .definition = definition::cross_entropy_backward,
                         .cases = {"cross_entropy_backward:scalar+64x1000+64@i64"}};
  return def;
}
const OpDef& mse_loss_op() {
  static const OpDef def{.name = "mse_loss",
                         .doc = "(x - target)^2, reduced",
                         .inputs = {"x", "target"},
                         .outputs = {"loss"},
                         .make_attrs = make_options<LossAttrs>,
                         .infer = infer_elementwise_loss,
                         .gradient = mse_gradient,
                         .cost = input_cost<3>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::mse_loss};
  return def;
}
const OpDef& bce_with_logits_op() {
  static const OpDef def{.name = "bce_with_logits",
                         .doc = "binary cross entropy of sigmoid(x): max(x,0) - x target + log(1 + exp(-|x|)), reduced",
                         .inputs = {"x", "target", Port::statistics("weight?")},
                         .outputs = {"loss"},
                         .make_attrs = make_options<LossAttrs>,
                         .infer = infer_elementwise_loss,
                         .gradient = bce_gradient,
                         .cost = input_cost<6>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::bce_with_logits};
  return def;
}

OpTable loss_ops() { return {&cross_entropy_op(), &cross_entropy_backward_op(), &mse_loss_op(), &bce_with_logits_op()}; }

Value cross_entropy(Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs) {
  return emit("cross_entropy", {logits, target, class_weight}, attrs);
}
Value cross_entropy_backward(Value grad, Value logits, Value target, Value class_weight, const CrossEntropyAttrs& attrs) {
  return emit("cross_entropy_backward", {grad, logits, target, class_weight}, attrs);
}
Value mse_loss(Value x, Value target, const LossAttrs& attrs) { return emit("mse_loss", {x, target}, attrs); }
Value bce_with_logits(Value x, Value target, Value weight, const LossAttrs& attrs) {
  return emit("bce_with_logits", {x, target, weight}, attrs);
}

}  // namespace galley
