#include "libcore/ops/fake_quantize.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

void check_range(int64_t qmin, int64_t qmax) { GALLEY_CHECK(qmin < qmax, "qmin must be below qmax: ", qmin, ", ", qmax); }

/// Checks that `value` is one number, or one number per channel of x along the axis.
void check_per_channel(const TensorType& x, int64_t axis, const TensorType& value, std::string_view name) {
  check_floating(value, name);
  if (axis < 0) {
    GALLEY_CHECK(axis == -1, "axis must be a dimension counted from 0, or -1 for one ", name, ", not ", axis);
    GALLEY_CHECK(value.shape == Shape(), name, " must be [] without an axis, not ", value);
    return;
  }
  const Shape expected{x.shape[axis_of(axis, x)]};
  GALLEY_CHECK(value.shape == expected, name, " must be ", expected, " for axis ", axis, " of ", x.shape, ", not ", value);
}

template <int kX>
void check_fake(const OpContext& c) {
  const auto& a = c.attrs<FakeQuantizeAttrs>();
  check_floating(c.in(kX), "x");
  check_range(a.qmin, a.qmax);
  check_per_channel(c.in(kX), a.axis, c.in(kX + 1), "scale");
  check_per_channel(c.in(kX), a.axis, c.in(kX + 2), "zero_point");
}

std::vector<TensorType> infer_fake(const OpContext& c) {
  check_fake<0>(c);
  return {c.in(0)};
}
std::vector<TensorType> infer_fake_backward(const OpContext& c) {
  check_fake<1>(c);
  check_like(c.in(0), "grad", c.in(1), "x");
  return {c.in(1)};
}
std::vector<TensorType> infer_scale_backward(const OpContext& c) {
  check_fake<1>(c);
  check_like(c.in(0), "grad", c.in(1), "x");
  return {c.in(2)};
}

void fake_gradient(GradientBuilder& g) {
  const auto& a = g.attrs<FakeQuantizeAttrs>();
  if (g.wants(0)) g.set(0, fake_quantize_backward(g.grad(), g.in(0), g.in(1), g.in(2), a));
  if (g.wants(1)) g.set(1, fake_quantize_scale_backward(g.grad(), g.in(0), g.in(1), g.in(2), a));
}

std::vector<TensorType> infer_observe(const OpContext& c) {
  const auto& a = c.attrs<ObserveRangeAttrs>();
  check_floating(c.in(0), "x");
  GALLEY_CHECK(c.in(0).elements() > 0, "the range of an empty array is undefined: ", c.in(0));
  GALLEY_CHECK(a.averaging > 0 && a.averaging <= 1, "averaging must be above 0 and at most 1, not ", a.averaging);
  check_per_channel(c.in(0), a.axis, c.in(1), "min_state");
  check_per_channel(c.in(0), a.axis, c.in(2), "max_state");
  GALLEY_CHECK(is_floating(c.in(3).dtype) && c.in(3).shape == Shape(), "enabled must be f32 [], not ", c.in(3));
  return {c.in(1), c.in(2)};
}

std::vector<TensorType> infer_keep(const OpContext& c) {
  check_floating(c.in(0), "min_state");
  check_like(c.in(1), "max_state", c.in(0), "min_state");
  check_like(c.in(2), "min", c.in(0), "min_state");
  check_like(c.in(3), "max", c.in(0), "min_state");
  check_gate(c, 4);
  return {c.in(0), c.in(1)};
}

std::vector<TensorType> infer_qparams(const OpContext& c) {
  const auto& a = c.attrs<QparamsFromRangeAttrs>();
  check_floating(c.in(0), "min");
  check_like(c.in(1), "max", c.in(0), "min");
  check_quant_range(a.range());
  return {c.in(0), c.in(0)};
}

constexpr std::string_view kObserved = "ranges are observed, not learned";

}  // namespace

void FakeQuantizeAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "dimension with one scale per channel; -1: one scale", .min = -1}, axis);
  v.option({.name = "qmin", .doc = "smallest integer"}, qmin);
  v.option({.name = "qmax", .doc = "largest integer"}, qmax);
  v.option({.name = "gradient_factor", .doc = "multiplies the scale's gradient"}, gradient_factor);
}
void ObserveRangeAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "dimension with one range per channel; -1: one range", .min = -1}, axis);
  v.option({.name = "averaging", .doc = "weight of this batch; 1: only this batch", .min = 0, .max = 1}, averaging);
}
void QparamsFromRangeAttrs::options(OptionVisitor& v) {
  v.option({.name = "qmin", .doc = "smallest integer"}, qmin);
  v.option({.name = "qmax", .doc = "largest integer"}, qmax);
  v.option({.name = "symmetric", .doc = "use the larger absolute value on both sides"}, symmetric);
}

const OpDef& fake_quantize_op() {
  static const OpDef def{
      .name = "fake_quantize",
      .doc = "rounds to quantized values; the gradient is that of the identity (straight-through)",
      .inputs = {"x", Port::statistics("scale"), Port::statistics("zero_point")},
      .outputs = {"y"},
      .make_attrs = make_options<FakeQuantizeAttrs>,
      .infer = infer_fake,
      .gradient = fake_gradient,
      .cost = elementwise_cost<6>,
      .precision = PrecisionRule::kKeepF32,
      .may_reuse = {{0, 0}},
      .definition = definition::fake_quantize,
      .cases = {"fake_quantize:16x64x56x56+scalar+scalar", "fake_quantize:512x512x3x3+512+512:axis=0,qmin=-127,qmax=127"}};
  return def;
}
const OpDef& fake_quantize_backward_op() {
  static const OpDef def{.name = "fake_quantize_backward",
                         .doc = "grad inside the range of integers, 0 outside (Bengio et al. 2013)",
                         .inputs = {"grad", "x", Port::statistics("scale"), Port::statistics("zero_point")},
                         .outputs = {"dx"},
                         .make_attrs = make_options<FakeQuantizeAttrs>,
                         .infer = infer_fake_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = elementwise_cost<5>,
                         .precision = PrecisionRule::kKeepF32,
                         .may_reuse = {{0, 0}, {0, 1}},
                         .definition = definition::fake_quantize_backward,
                         .cases = {"fake_quantize_backward:16x64x56x56+16x64x56x56+scalar+scalar"}};
  return def;
}
const OpDef& fake_quantize_scale_backward_op() {
  static const OpDef def{.name = "fake_quantize_scale_backward",
                         .doc = "gradient of fake_quantize's scale (LSQ, Esser et al. 2020)",
                         .inputs = {"grad", "x", Port::statistics("scale"), Port::statistics("zero_point")},
                         .outputs = {Port::statistics("dscale")},
                         .make_attrs = make_options<FakeQuantizeAttrs>,
                         .infer = infer_scale_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<8>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::fake_quantize_scale_backward,
                         .cases = {"fake_quantize_scale_backward:16x64x56x56+16x64x56x56+scalar+scalar"}};
  return def;
}
const OpDef& observe_range_op() {
  static const OpDef def{.name = "observe_range",
                         .doc = "moving average of the smallest and largest value",
                         .inputs = {"x", Port::state("min_state"), Port::state("max_state"), Port::scalar("enabled")},
                         .outputs = {Port::statistics("min"), Port::statistics("max")},
                         .make_attrs = make_options<ObserveRangeAttrs>,
                         .infer = infer_observe,
                         .no_gradient = kObserved,
                         .cost = input_cost<2>,
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .definition = definition::observe_range,
                         .cases = {"observe_range:16x64x56x56+scalar+scalar+scalar"}};
  return def;
}
const OpDef& keep_range_op() {
  static const OpDef def{.name = "keep_range",
                         .doc = "assigns an observed range to the state, in place",
                         .inputs = {Port::state("min_state"), Port::state("max_state"), Port::statistics("min"), Port::statistics("max"),
                                    Port::scalar("gate?")},
                         .outputs = {Port::state("min_state"), Port::state("max_state")},
                         .infer = infer_keep,
                         .no_gradient = kObserved,
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}, {1, 1}},
                         .gate = 4,
                         .definition = definition::keep_range};
  return def;
}
const OpDef& qparams_from_range_op() {
  static const OpDef def{.name = "qparams_from_range",
                         .doc = "scale and zero point of a range, as PyTorch's observers",
                         .inputs = {Port::statistics("min"), Port::statistics("max")},
                         .outputs = {Port::statistics("scale"), Port::statistics("zero_point")},
                         .make_attrs = make_options<QparamsFromRangeAttrs>,
                         .infer = infer_qparams,
                         .no_gradient = kObserved,
                         .cost = elementwise_cost<8>,
                         .precision = PrecisionRule::kKeepF32,
                         .stops_gradient = true,
                         .definition = definition::qparams_from_range,
                         .cases = {"qparams_from_range:512+512"}};
  return def;
}

Value fake_quantize(Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs) {
  return emit("fake_quantize", {x, scale, zero_point}, attrs);
}
Value fake_quantize_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs) {
  return emit("fake_quantize_backward", {grad, x, scale, zero_point}, attrs);
}
Value fake_quantize_scale_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs) {
  return emit("fake_quantize_scale_backward", {grad, x, scale, zero_point}, attrs);
}
MovingRange observe_range(Value x, Value min_state, Value max_state, Value enabled, const ObserveRangeAttrs& attrs) {
  const std::vector<Value> r =
      emit_all("observe_range", std::make_unique<ObserveRangeAttrs>(attrs), std::vector<Value>{x, min_state, max_state, enabled});
  return {r[0], r[1]};
}
void keep_range(Value min_state, Value max_state, const MovingRange& range) {
  emit("keep_range", {min_state, max_state, range.min, range.max});
}
RangeParams qparams_from_range(Value min, Value max, const QparamsFromRangeAttrs& attrs) {
  const std::vector<Value> r = emit_all("qparams_from_range", std::make_unique<QparamsFromRangeAttrs>(attrs), std::vector<Value>{min, max});
  return {r[0], r[1]};
}

OpTable fake_quantize_ops() {
  return {&fake_quantize_op(), &fake_quantize_backward_op(), &fake_quantize_scale_backward_op(), &observe_range_op(),
          &keep_range_op(),    &qparams_from_range_op()};
}

}  // namespace galley
