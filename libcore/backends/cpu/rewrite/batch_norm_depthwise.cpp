#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"

#include "libcore/backends/cpu/rewrite/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

template <class Attrs>
Attrs window_of(const BatchNormDepthwiseAttrs& a, const TensorType& x) {
  GALLEY_CHECK(x.shape.rank() == 4, "the input must be [N,C,H,W], is ", x.shape);
  Attrs window;
  static_cast<Conv2dWindow&>(window) = a.window(x.shape[1]);
  return window;
}

std::vector<TensorType> infer(const OpContext& c) {
  const auto& a = c.attrs<BatchNormDepthwiseAttrs>();
  const TensorType &x = c.in(0), &weight = c.in(1);
  BatchNormAttrs norm;
  norm.eps = a.eps;
  norm.activation = a.activation;
  const std::vector<TensorType> normalized = infer_part(batch_norm_op(), norm, {&x, given(c, 2), given(c, 3)});
  const auto window = window_of<Conv2dAttrs>(a, x);
  GALLEY_CHECK(weight.shape.rank() == 4 && weight.shape[0] == x.shape[1], "the weight must have one kernel for each of ", x.shape[1],
               " channels, is ", weight.shape);
  return {infer_part(conv2d_op(), window, {&normalized[0], &weight})[0], normalized[1], normalized[2]};
}

std::vector<TensorType> infer_backward(const OpContext& c) {
  const auto& a = c.attrs<BatchNormDepthwiseAttrs>();
  const TensorType &grad = c.in(0), &weight = c.in(1), &x = c.in(2);
  auto window = window_of<Conv2dBackwardWeightsAttrs>(a, x);
  GALLEY_CHECK(weight.shape.rank() == 4, "the weight must be [C,1,kh,kw], is ", weight.shape);
  window.kernel_size = {weight.shape[2], weight.shape[3]};
  TensorType dweight = infer_part(conv2d_backward_weights_op(), window, {&x, &grad})[0];
  BatchNormBackwardAttrs norm;
  norm.eps = a.eps;
  norm.activation = a.activation == Activation::kRelu ? Activation::kNone : a.activation;  // relu's mask comes from x here
  std::vector<TensorType> types = infer_part(batch_norm_backward_op(), norm, {&x, &x, &c.in(3), &c.in(4), given(c, 5), given(c, 6)});
  types.insert(types.begin() + 1, std::move(dweight));
  return types;
}

/// Operations of the convolution (twice as many in the backward pass) and of the norm.
Cost cost(const OpContext& c) {
  return operand_cost(c, 2.0 * static_cast<double>(c.out(0).elements() * c.in(1).shape[2] * c.in(1).shape[3]) +
                             8.0 * static_cast<double>(c.in(0).elements()));
}
Cost cost_backward(const OpContext& c) {
  return operand_cost(c, 4.0 * static_cast<double>(c.in(0).elements() * c.in(1).shape[2] * c.in(1).shape[3]) +
                             10.0 * static_cast<double>(c.in(2).elements()));
}

void gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  const auto d =
      batch_norm_depthwise_backward(g.grad(0), g.in(1), g.in(0), g.out(1), g.out(2), g.in(2), g.in(3), g.attrs<BatchNormDepthwiseAttrs>());
  for (size_t i = 0; i < d.size(); ++i) {
    if (g.in(i)) g.set(i, d[i]);
  }
}

}  // namespace

void BatchNormDepthwiseAttrs::options(OptionVisitor& v) {
  v.option({.name = "eps", .doc = "added to the variance", .min = 0}, eps);
  v.choice({.name = "activation", .doc = "none, relu, relu6 or hardswish, between the norm and the convolution"}, activation,
           kActivationNames);
  v.option({.name = "stride", .doc = "stride of the window, rows and columns", .min = 1}, stride);
  v.option({.name = "padding", .doc = "zero padding around the output of the norm, rows and columns", .min = 0}, padding);
}

Conv2dWindow BatchNormDepthwiseAttrs::window(int64_t channels) const {
  Conv2dWindow window;
  window.stride = stride;
  window.padding = padding;
  window.groups = channels;
  return window;
}

const OpDef& batch_norm_depthwise_op() {
  static const OpDef def{
      .name = "batch_norm_depthwise",
      .doc = "batch normalization by the batch's statistics with activation, and the depthwise convolution of the result",
      .inputs = {"x", Port::weight("weight"), Port::statistics("gamma?"), Port::statistics("beta?")},
      .outputs = {"y", Port::statistics("mean"), Port::statistics("var")},
      .make_attrs = make_options<BatchNormDepthwiseAttrs>,
      .infer = infer,
      .gradient = gradient,
      .cost = cost,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads},
      .precision = PrecisionRule::kActivations,
      .definition = cpu_definition::batch_norm_depthwise,
      .made_by_rewrite = true,
      .cases = {"batch_norm_depthwise:32x64x112x112+64x1x3x3+64+64:stride=2,padding=1,activation=hardswish",
                "batch_norm_depthwise:32x120x28x28+120x1x5x5+120+120:padding=2"}};
  return def;
}
const OpDef& batch_norm_depthwise_backward_op() {
  static const OpDef def{
      .name = "batch_norm_depthwise_backward",
      .doc = "gradients of batch_norm_depthwise",
      .inputs = {"grad", Port::weight("weight"), "x", Port::statistics("mean"), Port::statistics("var"), Port::statistics("gamma?"),
                 Port::statistics("beta?")},
      .outputs = {"dx", Port::weight("dweight"), Port::statistics("dgamma"), Port::statistics("dbeta")},
      .make_attrs = make_options<BatchNormDepthwiseAttrs>,
      .infer = infer_backward,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_backward,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},
      .precision = PrecisionRule::kActivations,
      .definition = cpu_definition::batch_norm_depthwise_backward,
      .made_by_rewrite = true,
      .cases = {"batch_norm_depthwise_backward:32x64x56x56+64x1x3x3+32x64x112x112+64+64+64+64:stride=2,padding=1,activation=hardswish"}};
  return def;
}

BatchNormDepthwise batch_norm_depthwise(Value x, Value weight, Value gamma, Value beta, const BatchNormDepthwiseAttrs& attrs) {
  const std::vector<Value> r =
      emit_all(batch_norm_depthwise_op(), std::make_unique<BatchNormDepthwiseAttrs>(attrs), std::vector<Value>{x, weight, gamma, beta});
  return {r[0], r[1], r[2]};
}
std::vector<Value> batch_norm_depthwise_backward(Value grad, Value weight, Value x, Value mean, Value var, Value gamma, Value beta,
                                                 const BatchNormDepthwiseAttrs& attrs) {
  return emit_all(batch_norm_depthwise_backward_op(), std::make_unique<BatchNormDepthwiseAttrs>(attrs),
                  std::vector<Value>{grad, weight, x, mean, var, gamma, beta});
}

}  // namespace galley
