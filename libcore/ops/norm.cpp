#include "libcore/ops/norm.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

/// Statistics are f32 if x has a smaller dtype.
DType statistics_dtype(const TensorType& x) { return x.dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TensorType vector_of(const TensorType& x, int64_t size) {
  TensorType v;
  v.dtype = statistics_dtype(x);
  v.shape = Shape{size};
  return v;
}

/// Dtype of the gradients of gamma and beta: gamma's dtype if there is a gamma.
DType parameter_dtype(const OpContext& c, const TensorType& x) { return c.has(4) ? c.in(4).dtype : statistics_dtype(x); }

void check_vector(const OpContext& c, int i, int64_t size, std::string_view name) {
  if (c.has(i)) GALLEY_CHECK(c.in(i).shape == Shape({size}), name, " must be [", size, "] (one per channel), not ", c.in(i).shape);
}

void check_input(const TensorType& x) {
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() >= 2 && x.shape.rank() <= 5, "the input must have 2 to 5 dimensions [N,C,...], not ", x.shape);
}

void check_activation(Activation activation, bool residual) {
  GALLEY_CHECK(batch_norm_takes(activation), "batch norm supports the activations none, relu, relu6 and hardswish, not ",
               kActivationNames[static_cast<size_t>(activation)]);
  GALLEY_CHECK(!residual || activation == Activation::kNone || activation == Activation::kRelu,
               "batch norm with a residual supports the activations none and relu, not ",
               kActivationNames[static_cast<size_t>(activation)]);
}

std::vector<TensorType> infer_batch_norm(const OpContext& c) {
  const TensorType& x = c.in(0);
  check_input(x);
  check_activation(c.attrs<BatchNormAttrs>().activation, c.has(3));
  check_vector(c, 1, x.shape[1], "gamma");
  check_vector(c, 2, x.shape[1], "beta");
  if (c.has(3)) check_like(c.in(3), "residual", x, "the input");
  return {x, vector_of(x, x.shape[1]), vector_of(x, x.shape[1])};
}

std::vector<TensorType> infer_batch_norm_backward(const OpContext& c) {
  const auto& a = c.attrs<BatchNormBackwardAttrs>();
  const TensorType& x = c.in(1);
  check_input(x);
  check_like(c.in(0), "grad", x, "the input");
  check_vector(c, 2, x.shape[1], "mean");
  check_vector(c, 3, x.shape[1], "var");
  check_vector(c, 4, x.shape[1], "gamma");
  check_vector(c, 5, x.shape[1], "beta");
  check_activation(a.activation, a.residual);
  if (c.has(6)) check_like(c.in(6), "y", x, "the input");
  GALLEY_CHECK(a.activation == Activation::kRelu ? c.has(6) || !a.residual : !c.has(6),
               "y must be given if and only if there is a residual and the activation is relu");
  TensorType parameter = vector_of(x, x.shape[1]);
  parameter.dtype = parameter_dtype(c, x);
  std::vector<TensorType> types{x, parameter, parameter};
  if (a.residual) types.push_back(x);
  return types;
}

std::vector<TensorType> infer_batch_norm_inference(const OpContext& c) {
  const TensorType& x = c.in(0);
  check_input(x);
  for (int i = 1; i < 5; ++i) check_vector(c, i, x.shape[1], i == 1 ? "gamma" : i == 2 ? "beta" : i == 3 ? "running_mean" : "running_var");
  return {x};
}

std::vector<TensorType> infer_batch_norm_update(const OpContext& c) {
  const TensorType& mean = c.in(0);
  GALLEY_CHECK(mean.shape.rank() == 1, "running_mean must be [C], not ", mean.shape);
  for (int i = 1; i < 4; ++i) check_vector(c, i, mean.shape[0], "each statistic");
  std::vector<TensorType> types{mean, c.in(1)};
  if (c.has(4)) {
    check_scalar(c.in(4), "num_batches_tracked", DType::kI64);
    types.push_back(c.in(4));
  }
  check_gate(c, 5);
  return types;
}

Shape split_shape(const Shape& shape, int from, int to) {
  Shape part;
  for (int axis = from; axis < to; ++axis) part.push_back(shape[axis]);
  return part;
}

std::vector<TensorType> infer_layer_norm(const OpContext& c) {
  const TensorType& x = c.in(0);
  const int64_t dims = c.attrs<LayerNormAttrs>().dims;
  check_floating(x, "x");
  GALLEY_CHECK(dims >= 1 && dims <= x.shape.rank(), "dims is ", dims, ", but the input has rank ", x.shape.rank(), ": ", x.shape);
  const int lead = x.shape.rank() - static_cast<int>(dims);
  const Shape inner = split_shape(x.shape, lead, x.shape.rank());
  for (int i : {1, 2}) {
    if (c.has(i)) GALLEY_CHECK(c.in(i).shape == inner, i == 1 ? "gamma" : "beta", " must be ", inner, ", not ", c.in(i).shape);
  }
  TensorType statistics;
  statistics.dtype = statistics_dtype(x);
  statistics.shape = split_shape(x.shape, 0, lead);
  return {x, statistics, statistics};
}

std::vector<TensorType> infer_layer_norm_backward(const OpContext& c) {
  const TensorType& x = c.in(1);
  check_like(c.in(0), "grad", x, "the input");
  const int lead = x.shape.rank() - static_cast<int>(c.attrs<LayerNormBackwardAttrs>().dims);
  TensorType inner;
  inner.dtype = parameter_dtype(c, x);
  inner.shape = split_shape(x.shape, lead, x.shape.rank());
  return {x, inner, inner};
}

std::vector<TensorType> infer_group_norm(const OpContext& c) {
  const TensorType& x = c.in(0);
  const int64_t groups = c.attrs<GroupNormAttrs>().groups;
  check_input(x);
  GALLEY_CHECK(groups >= 1 && x.shape[1] % groups == 0, x.shape[1], " channels are not a multiple of ", groups, " groups: input ", x.shape);
  check_vector(c, 1, x.shape[1], "gamma");
  check_vector(c, 2, x.shape[1], "beta");
  if (c.has(3)) check_extents(c.in(3), x);
  TensorType statistics;
  statistics.dtype = statistics_dtype(x);
  statistics.shape = Shape{x.shape[0], groups};
  return {x, statistics, statistics};
}

std::vector<TensorType> infer_group_norm_backward(const OpContext& c) {
  const TensorType& x = c.in(1);
  check_like(c.in(0), "grad", x, "the input");
  if (c.has(5)) check_extents(c.in(5), x);
  TensorType parameter = vector_of(x, x.shape[1]);
  parameter.dtype = parameter_dtype(c, x);
  return {x, parameter, parameter};
}

void batch_norm_gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  const auto& a = g.attrs<BatchNormAttrs>();
  BatchNormBackwardAttrs b;
  b.eps = a.eps;
  b.activation = a.activation;
  b.sync = a.sync;
  const bool residual = static_cast<bool>(g.in(3)) && g.wants(3);
  b.residual = residual && a.activation != Activation::kNone;
  const auto d = batch_norm_backward(g.grad(0), g.in(0), g.out(1), g.out(2), g.in(1), g.in(2),
                                     a.activation == Activation::kRelu && g.in(3) ? g.out(0) : Value(), b);
  g.set(0, d[0]);
  if (g.in(1)) g.set(1, d[1]);
  if (g.in(2)) g.set(2, d[2]);
  if (residual) g.set(3, b.residual ? d[3] : g.grad(0));
}

void layer_norm_gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  LayerNormBackwardAttrs b;
  b.dims = g.attrs<LayerNormAttrs>().dims;
  const auto d = layer_norm_backward(g.grad(0), g.in(0), g.out(1), g.out(2), g.in(1), b);
  g.set(0, d[0]);
  if (g.in(1)) g.set(1, d[1]);
  if (g.in(2)) g.set(2, d[2]);
}

void group_norm_gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  GroupNormBackwardAttrs b;
  b.groups = g.attrs<GroupNormAttrs>().groups;
  const auto d = emit_all("group_norm_backward", std::make_unique<GroupNormBackwardAttrs>(b),
                          std::vector<Value>{g.grad(0), g.in(0), g.out(1), g.out(2), g.in(1), g.in(3)});
  g.set(0, d[0]);
  if (g.in(1)) g.set(1, d[1]);
  if (g.in(2)) g.set(2, d[2]);
}

/// With constant statistics batch norm is an affine map per channel: y = x s + (beta - mean s), s = gamma / sqrt(var + eps).
void frozen_batch_norm_gradient(GradientBuilder& g) {
  const auto& attrs = g.attrs<BatchNormInferenceAttrs>();
  GALLEY_ASSERT(attrs.activation == Activation::kNone, "a fused batch norm has no gradient; fuse only for inference");
  const Value x = g.in(0), grad = g.grad();
  Shape channel_shape;
  for (int axis = 0; axis < x.shape().rank(); ++axis) channel_shape.push_back(axis == 1 ? x.channels() : 1);
  const auto per_channel = [&](Value v) { return cast(reshape(v, channel_shape), x.dtype()); };
  std::vector<int64_t> others;
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    if (axis != 1) others.push_back(axis);
  }
  const Value rstd = rsqrt(affine(g.in(4), 1, attrs.eps));
  if (g.wants(0)) g.set(0, mul(grad, per_channel(g.in(1) ? mul(g.in(1), rstd) : rstd)));
  if (g.in(1) && g.wants(1)) {
    const Value dot = sum(mul(grad, sub(x, per_channel(g.in(3)))), others);
    g.set(1, cast(mul(rstd, cast(dot, rstd.dtype())), g.in(1).dtype()));
  }
  if (g.in(2) && g.wants(2)) g.set(2, cast(sum(grad, others), g.in(2).dtype()));
}

Cost cost_backward(const OpContext& c) { return operand_cost(c, 10.0 * static_cast<double>(c.in(1).elements())); }

}  // namespace

void BatchNormAttrs::options(OptionVisitor& v) {
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
  v.choice({.name = "activation", .doc = "none, relu, relu6 or hardswish"}, activation, kActivationNames);
  v.option({.name = "sync", .doc = "the collective that sums the statistics over ranks"}, sync);
}
void BatchNormBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
  v.choice({.name = "activation", .doc = "none, relu, relu6 or hardswish"}, activation, kActivationNames);
  v.option({.name = "residual", .doc = "the residual's gradient is a fourth output"}, residual);
  v.option({.name = "sync", .doc = "the collective that sums the statistics over ranks"}, sync);
}
void BatchNormInferenceAttrs::options(OptionVisitor& v) {
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}
void BatchNormUpdateAttrs::options(OptionVisitor& v) {
  v.option({.name = "momentum", .doc = "weight of the batch's statistics", .min = 0, .max = 1}, momentum);
  v.option({.name = "count", .doc = "values per channel that the statistics were taken over", .min = 1}, count);
}
void LayerNormAttrs::options(OptionVisitor& v) {
  v.option({.name = "dims", .doc = "number of trailing dimensions to normalize", .min = 1}, dims);
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
}
void LayerNormBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "dims", .doc = "number of trailing dimensions to normalize", .min = 1}, dims);
}
void GroupNormAttrs::options(OptionVisitor& v) {
  v.option({.name = "groups", .doc = "groups of channels", .min = 1}, groups);
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
}
void GroupNormBackwardAttrs::options(OptionVisitor& v) { v.option({.name = "groups", .doc = "groups of channels", .min = 1}, groups); }

const OpDef& batch_norm_op() {
  static const OpDef def{.name = "batch_norm",
                         .doc = "batch normalization by the batch's statistics, with residual and activation (Ioffe, Szegedy 2015)",
                         .inputs = {"x", Port::statistics("gamma?"), Port::statistics("beta?"), "residual?"},
                         .outputs = {"y", Port::statistics("mean"), Port::statistics("var")},
                         .make_attrs = make_options<BatchNormAttrs>,
                         .infer = infer_batch_norm,
                         .gradient = batch_norm_gradient,
                         .cost = input_cost<8>,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kActivations,
                         .definition = definition::batch_norm,
                         .cases = {"batch_norm:16x64x56x56+64+64"}};
  return def;
}
const OpDef& batch_norm_backward_op() {
  static const OpDef def{.name = "batch_norm_backward",
                         .doc = "gradients of batch_norm",
                         .inputs = {"grad", "x", Port::statistics("mean"), Port::statistics("var"), Port::statistics("gamma?"),
                                    Port::statistics("beta?"), "y?"},
                         .outputs = {"dx", Port::statistics("dgamma"), Port::statistics("dbeta"), "dresidual"},
                         .make_attrs = make_options<BatchNormBackwardAttrs>,
                         .infer = infer_batch_norm_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 1}, {0, 0}, {3, 0}},
                         .definition = definition::batch_norm_backward,
                         .cases = {"batch_norm_backward:16x64x56x56+16x64x56x56+64+64+64"}};
  return def;
}
namespace {
/// y = x s + (beta - mean s), s = gamma / sqrt(var + eps).
void batch_norm_scale(IntegerBuilder& b) {
  const Value rstd = rsqrt(affine(b.in(4), 1, b.attrs<BatchNormInferenceAttrs>().eps));
  const Value s = b.in(1) ? mul(b.in(1), rstd) : rstd;
  const Value shift = neg(mul(b.in(3), s));
  b.set(0, s);
  b.set(1, b.in(2) ? add(shift, b.in(2)) : shift);
}
/// A depthwise product with one weight per channel.
void batch_norm_on_integers(IntegerBuilder& b) {
  QuantizedConv2dAttrs attrs;
  attrs.groups = b.in(0).channels();
  attrs.activation = b.attrs<BatchNormInferenceAttrs>().activation;
  attrs.saturation = saturation_of(b.weight());
  set_input_and_result(b, attrs);
  b.set(quantized_conv2d(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs));
}
}  // namespace

const OpDef& batch_norm_inference_op() {
  static const OpDef def{.name = "batch_norm_inference",
                         .doc = "batch normalization by running statistics",
                         .inputs = {"x", Port::statistics("gamma?"), Port::statistics("beta?"), Port::statistics("running_mean"),
                                    Port::statistics("running_var")},
                         .outputs = {"y"},
                         .make_attrs = make_options<BatchNormInferenceAttrs>,
                         .infer = infer_batch_norm_inference,
                         .gradient = frozen_batch_norm_gradient,
                         .cost = input_cost<2>,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kActivations,
                         .quantize = QuantizeRule::kScale,
                         .may_reuse = {{0, 0}},
                         .definition = definition::batch_norm_inference,
                         .quantizable = [](const OpContext& c) { return c.in(0).shape.rank() == 4; },
                         .integer_form = batch_norm_on_integers,
                         .channel_scale = batch_norm_scale,
                         .variant_of = "batch_norm",
                         .cases = {"batch_norm_inference:16x64x56x56+64+64+64+64"}};
  return def;
}
const OpDef& batch_norm_update_op() {
  static const OpDef def{.name = "batch_norm_update",
                         .doc = "running statistics of a batch norm, in place, with PyTorch's unbiased variance",
                         .inputs = {Port::state("running_mean"), Port::state("running_var"), Port::statistics("mean"),
                                    Port::statistics("var"), Port::state("num_batches_tracked?"), Port::scalar("gate?")},
                         .outputs = {Port::state("running_mean"), Port::state("running_var"), Port::state("num_batches_tracked")},
                         .make_attrs = make_options<BatchNormUpdateAttrs>,
                         .infer = infer_batch_norm_update,
                         .no_gradient = "an update of state",
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kActivations,
                         .updates = {{0, 0}, {1, 1}, {2, 4}},
                         .gate = 5,
                         .definition = definition::batch_norm_update,
                         .cases = {"batch_norm_update:64+64+64+64:count=50176"}};
  return def;
}
const OpDef& layer_norm_op() {
  static const OpDef def{.name = "layer_norm",
                         .doc = "layer normalization (Ba et al. 2016)",
                         .inputs = {"x", Port::statistics("gamma?"), Port::statistics("beta?")},
                         .outputs = {"y", Port::statistics("mean"), Port::statistics("rstd")},
                         .make_attrs = make_options<LayerNormAttrs>,
                         .infer = infer_layer_norm,
                         .gradient = layer_norm_gradient,
                         .cost = input_cost<8>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::layer_norm,
                         .cases = {"layer_norm:16x197x768+768+768"}};
  return def;
}
const OpDef& layer_norm_backward_op() {
  static const OpDef def{.name = "layer_norm_backward",
                         .doc = "gradients of layer_norm",
                         .inputs = {"grad", "x", Port::statistics("mean"), Port::statistics("rstd"), Port::statistics("gamma?")},
                         .outputs = {"dx", Port::statistics("dgamma"), Port::statistics("dbeta")},
                         .make_attrs = make_options<LayerNormBackwardAttrs>,
                         .infer = infer_layer_norm_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::layer_norm_backward,
                         .cases = {"layer_norm_backward:16x197x768+16x197x768+16x197+16x197+768"}};
  return def;
}
const OpDef& group_norm_op() {
  static const OpDef def{.name = "group_norm",
                         .doc = "group normalization (Wu, He 2018)",
                         .inputs = {"x", Port::statistics("gamma?"), Port::statistics("beta?"), Port::index("extents?")},
                         .outputs = {"y", Port::statistics("mean"), Port::statistics("rstd")},
                         .make_attrs = make_options<GroupNormAttrs>,
                         .infer = infer_group_norm,
                         .gradient = group_norm_gradient,
                         .cost = input_cost<8>,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::group_norm,
                         .cases = {"group_norm:16x64x56x56+64+64:groups=32"}};
  return def;
}
const OpDef& group_norm_backward_op() {
  static const OpDef def{
      .name = "group_norm_backward",
      .doc = "gradients of group_norm",
      .inputs = {"grad", "x", Port::statistics("mean"), Port::statistics("rstd"), Port::statistics("gamma?"), Port::index("extents?")},
      .outputs = {"dx", Port::statistics("dgamma"), Port::statistics("dbeta")},
      .make_attrs = make_options<GroupNormBackwardAttrs>,
      .infer = infer_group_norm_backward,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_backward,
      .layout = {.prefers_channels_last = true},
      .precision = PrecisionRule::kActivations,
      .may_reuse = {{0, 0}},
      .definition = definition::group_norm_backward,
      .cases = {"group_norm_backward:16x64x56x56+16x64x56x56+16x32+16x32+64:groups=32"}};
  return def;
}

OpTable norm_ops() {
  return {&batch_norm_op(), &batch_norm_backward_op(), &batch_norm_inference_op(), &batch_norm_update_op(),
          &layer_norm_op(), &layer_norm_backward_op(), &group_norm_op(),           &group_norm_backward_op()};
}

bool batch_norm_takes(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kRelu || activation == Activation::kRelu6 ||
         activation == Activation::kHardswish;
}

BatchNorm batch_norm(Value x, Value gamma, Value beta, const BatchNormAttrs& attrs, Value residual) {
  const std::vector<Value> r =
      emit_all("batch_norm", std::make_unique<BatchNormAttrs>(attrs), std::vector<Value>{x, gamma, beta, residual});
  return {r[0], r[1], r[2]};
}
std::vector<Value> batch_norm_backward(Value grad, Value x, Value mean, Value var, Value gamma, Value beta, Value y,
                                       const BatchNormBackwardAttrs& attrs) {
  const std::vector<Value> inputs{grad, x, mean, var, gamma, beta, y};
  return emit_all("batch_norm_backward", std::make_unique<BatchNormBackwardAttrs>(attrs), inputs);
}
Value batch_norm_inference(Value x, Value gamma, Value beta, Value running_mean, Value running_var, const BatchNormInferenceAttrs& attrs) {
  return emit("batch_norm_inference", {x, gamma, beta, running_mean, running_var}, attrs);
}
std::vector<Value> batch_norm_update(Value running_mean, Value running_var, Value mean, Value var, Value num_batches_tracked,
                                     const BatchNormUpdateAttrs& attrs) {
  return emit_all("batch_norm_update", std::make_unique<BatchNormUpdateAttrs>(attrs),
                  std::vector<Value>{running_mean, running_var, mean, var, num_batches_tracked});
}
LayerNorm layer_norm(Value x, Value gamma, Value beta, const LayerNormAttrs& attrs) {
  const std::vector<Value> r = emit_all("layer_norm", std::make_unique<LayerNormAttrs>(attrs), std::vector<Value>{x, gamma, beta});
  return {r[0], r[1], r[2]};
}
std::vector<Value> layer_norm_backward(Value grad, Value x, Value mean, Value rstd, Value gamma, const LayerNormBackwardAttrs& attrs) {
  return emit_all("layer_norm_backward", std::make_unique<LayerNormBackwardAttrs>(attrs), std::vector<Value>{grad, x, mean, rstd, gamma});
}
GroupNorm group_norm(Value x, Value gamma, Value beta, const GroupNormAttrs& attrs) {
  const std::vector<Value> r = emit_all("group_norm", std::make_unique<GroupNormAttrs>(attrs), std::vector<Value>{x, gamma, beta});
  return {r[0], r[1], r[2]};
}
std::vector<Value> group_norm_backward(Value grad, Value x, Value mean, Value rstd, Value gamma, const GroupNormBackwardAttrs& attrs) {
  return emit_all("group_norm_backward", std::make_unique<GroupNormBackwardAttrs>(attrs), std::vector<Value>{grad, x, mean, rstd, gamma});
}

}  // namespace galley
