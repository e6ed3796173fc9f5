#include "libcore/backends/cpu/rewrite/pointwise.h"

#include "libcore/backends/cpu/rewrite/definitions.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

/// The type of the output of the 1x1 convolution.
TensorType infer_between(const TensorType& x, const TensorType& weight) {
  GALLEY_CHECK(weight.shape.rank() == 4 && weight.shape[2] == 1 && weight.shape[3] == 1, "the weight must be [O,C,1,1], is ", weight.shape);
  return infer_part(conv2d_op(), Conv2dAttrs(), {&x, &weight})[0];
}

/// dx and dweight of a 1x1 convolution with output `between`.
std::vector<TensorType> infer_pointwise(const TensorType& between, const TensorType& x, const TensorType& weight) {
  GALLEY_CHECK(x.shape.rank() == 4, "the convolution's input must be [N,C,H,W], is ", x.shape);
  GALLEY_CHECK(weight.shape.rank() == 4 && weight.shape[2] == 1 && weight.shape[3] == 1, "the weight must be [O,C,1,1], is ", weight.shape);
  Conv2dBackwardDataAttrs data;
  data.input_size = {x.shape[2], x.shape[3]};
  Conv2dBackwardWeightsAttrs weights;
  weights.kernel_size = {1};
  TensorType dx = infer_part(conv2d_backward_data_op(), data, {&between, &weight})[0];
  GALLEY_CHECK(dx.shape == x.shape, "input and weight do not fit: input ", x.shape, ", weight ", weight.shape);
  return {std::move(dx), infer_part(conv2d_backward_weights_op(), weights, {&x, &between})[0]};
}

std::vector<TensorType> infer_forward(const OpContext& c) {
  const TensorType between = infer_between(c.in(0), c.in(1));
  std::vector<TensorType> types =
      infer_part(batch_norm_depthwise_op(), c.attrs<BatchNormDepthwiseAttrs>(), {&between, &c.in(2), given(c, 3), given(c, 4)});
  types.push_back(moments_type(c.in(0)));
  return types;
}

std::vector<TensorType> infer_norm(const OpContext& c) {
  const std::vector<TensorType> norm = infer_part(batch_norm_backward_op(), c.attrs<BatchNormBackwardAttrs>(),
                                                  {&c.in(0), &c.in(1), &c.in(2), &c.in(3), given(c, 4), given(c, 5), given(c, 6)});
  std::vector<TensorType> types = infer_pointwise(norm[0], c.in(7), c.in(8));
  types.insert(types.end(), norm.begin() + 1, norm.end());
  return types;
}

std::vector<TensorType> infer_depthwise(const OpContext& c) {
  const TensorType between = infer_between(c.in(6), c.in(7));
  const std::vector<TensorType> inner = infer_part(batch_norm_depthwise_backward_op(), c.attrs<BatchNormDepthwiseAttrs>(),
                                                   {&c.in(0), &c.in(1), &between, &c.in(2), &c.in(3), given(c, 4), given(c, 5)});
  std::vector<TensorType> types = infer_pointwise(inner[0], c.in(6), c.in(7));
  if (c.has(8)) check_like(c.in(8), "residual", c.in(6), "the input");
  if (c.has(9))
    GALLEY_CHECK(c.in(9).shape == moments_type(c.in(6)).shape, "the moments must be ", moments_type(c.in(6)).shape, ", are ",
                 c.in(9).shape);
  types.insert(types.end(), inner.begin() + 1, inner.end());
  return types;
}

/// Operations of `products` products of x and the weight, and `operations` for each value of their output.
double flops(const TensorType& x, const TensorType& weight, double products, double operations) {
  return static_cast<double>(x.elements() / x.shape[1] * weight.shape[0]) * (2.0 * products * static_cast<double>(x.shape[1]) + operations);
}
/// Operations of `products` products of the depthwise convolution.
double depthwise_flops(const TensorType& y, const TensorType& depthwise, double products) {
  return 2.0 * products * static_cast<double>(y.elements() * depthwise.shape[2] * depthwise.shape[3]);
}
// The operations that the result needs, each counted once, even where a kernel recomputes values.
Cost cost_forward(const OpContext& c) { return operand_cost(c, flops(c.in(0), c.in(1), 1, 8) + depthwise_flops(c.out(0), c.in(2), 1)); }
Cost cost_norm(const OpContext& c) { return operand_cost(c, flops(c.in(7), c.in(8), 2, 10)); }
Cost cost_depthwise(const OpContext& c) { return operand_cost(c, flops(c.in(6), c.in(7), 3, 10) + depthwise_flops(c.in(0), c.in(1), 2)); }

}  // namespace

TensorType moments_type(const TensorType& x) { return {DType::kF32, {x.shape[1] + 1, x.shape[1]}}; }

const OpDef& pointwise_batch_norm_depthwise_op() {
  static const OpDef def{
      .name = "pointwise_batch_norm_depthwise",
      .doc = "a 1x1 convolution and the batch_norm_depthwise that reads it",
      .inputs = {"x", Port::weight("weight"), Port::weight("depthwise"), Port::statistics("gamma?"), Port::statistics("beta?")},
      .outputs = {"y", Port::statistics("mean"), Port::statistics("var"), Port::statistics("moments")},
      .make_attrs = make_options<BatchNormDepthwiseAttrs>,
      .infer = infer_forward,
      .no_gradient = kAfterDifferentiation,
      .cost = cost_forward,
      .work = WorkClass::kProduct,
      .precision = PrecisionRule::kActivations,
      .definition = cpu_definition::pointwise_batch_norm_depthwise,
      .made_by_rewrite = true,
      .cases = {"pointwise_batch_norm_depthwise:32x16x112x112+64x16x1x1+64x1x3x3+64+64:stride=2,padding=1,activation=relu"}};
  return def;
}
const OpDef& pointwise_batch_norm_backward_op() {
  static const OpDef def{
      .name = "pointwise_batch_norm_backward",
      .doc = "gradients of a 1x1 convolution and the batch norm that reads it",
      .inputs = {"grad", "between", Port::statistics("mean"), Port::statistics("var"), Port::statistics("gamma?"),
                 Port::statistics("beta?"), "y?", "x", Port::weight("weight")},
      .outputs = {"dx", Port::weight("dweight"), Port::statistics("dgamma"), Port::statistics("dbeta"), "dresidual"},
      .make_attrs = make_options<BatchNormBackwardAttrs>,
      .infer = infer_norm,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_norm,
      .work = WorkClass::kProduct,
      .precision = PrecisionRule::kActivations,
      .definition = cpu_definition::pointwise_batch_norm_backward,
      .made_by_rewrite = true,
      .cases = {"pointwise_batch_norm_backward:32x72x56x56+32x72x56x56+72+72+72+72+-+32x24x56x56+72x24x1x1:activation=relu"}};
  return def;
}
const OpDef& pointwise_batch_norm_depthwise_backward_op() {
  static const OpDef def{
      .name = "pointwise_batch_norm_depthwise_backward",
      .doc = "gradients of a 1x1 convolution and the batch_norm_depthwise that reads it",
      .inputs = {"grad", Port::weight("depthwise"), Port::statistics("mean"), Port::statistics("var"), Port::statistics("gamma?"),
                 Port::statistics("beta?"), "x", Port::weight("weight"), "residual?", Port::statistics("moments?")},
      .outputs = {"dx", Port::weight("dweight"), Port::weight("ddepthwise"), Port::statistics("dgamma"), Port::statistics("dbeta")},
      .make_attrs = make_options<BatchNormDepthwiseAttrs>,
      .infer = infer_depthwise,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_depthwise,
      .work = WorkClass::kProduct,
      .precision = PrecisionRule::kActivations,
      .definition = cpu_definition::pointwise_batch_norm_depthwise_backward,
      .made_by_rewrite = true,
      .cases = {"pointwise_batch_norm_depthwise_backward:32x64x56x56+64x1x3x3+64+64+64+64+32x16x112x112+64x16x1x1:stride=2,padding=1,"
                "activation=relu"}};
  return def;
}

PointwiseBatchNormDepthwise pointwise_batch_norm_depthwise(Value x, Value weight, Value depthwise, Value gamma, Value beta,
                                                           const BatchNormDepthwiseAttrs& attrs) {
  const std::vector<Value> r = emit_all(pointwise_batch_norm_depthwise_op(), std::make_unique<BatchNormDepthwiseAttrs>(attrs),
                                        std::vector<Value>{x, weight, depthwise, gamma, beta});
  return {r[0], r[1], r[2], r[3]};
}
std::vector<Value> pointwise_batch_norm_backward(Value grad, Value between, Value mean, Value var, Value gamma, Value beta, Value y,
                                                 Value x, Value weight, const BatchNormBackwardAttrs& attrs) {
  return emit_all(pointwise_batch_norm_backward_op(), std::make_unique<BatchNormBackwardAttrs>(attrs),
                  std::vector<Value>{grad, between, mean, var, gamma, beta, y, x, weight});
}
std::vector<Value> pointwise_batch_norm_depthwise_backward(Value grad, Value depthwise, Value mean, Value var, Value gamma, Value beta,
                                                           Value x, Value weight, const BatchNormDepthwiseAttrs& attrs, Value residual,
                                                           Value moments) {
  return emit_all(pointwise_batch_norm_depthwise_backward_op(), std::make_unique<BatchNormDepthwiseAttrs>(attrs),
                  std::vector<Value>{grad, depthwise, mean, var, gamma, beta, x, weight, residual, moments});
}

}  // namespace galley
