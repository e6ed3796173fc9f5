#include "libcore/ops/conv.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

int64_t output_size(const Conv2dWindow& a, size_t axis, int64_t in, int64_t kernel) {
  const int64_t span = pair(a.dilation)[axis] * (kernel - 1) + 1;
  const int64_t room = in + 2 * pair(a.padding)[axis] - span;
  GALLEY_CHECK(room >= 0, "the kernel covers ", span, axis == 0 ? " rows" : " columns", ", but the padded input has ",
               in + 2 * pair(a.padding)[axis]);
  return room / pair(a.stride)[axis] + 1;
}

void check_window(const Conv2dWindow& a) {
  for (size_t axis = 0; axis < 2; ++axis) {
    GALLEY_CHECK(pair(a.stride)[axis] >= 1, "stride must be at least 1");
    GALLEY_CHECK(pair(a.dilation)[axis] >= 1, "dilation must be at least 1");
    GALLEY_CHECK(pair(a.padding)[axis] >= 0, "padding cannot be negative");
  }
  GALLEY_CHECK(a.groups >= 1, "groups must be at least 1");
}

void check_operands(const Conv2dWindow& a, const Shape& x, const Shape& weight) {
  check_window(a);
  GALLEY_CHECK(x.rank() == 4, "the input must be [N,C,H,W], not ", x);
  GALLEY_CHECK(weight.rank() == 4, "the weight must be [O,C/groups,kh,kw], not ", weight);
  GALLEY_CHECK(weight[0] % a.groups == 0, "the weight's ", weight[0], " output channels are not a multiple of ", a.groups,
               " groups: weight ", weight);
  GALLEY_CHECK(weight[2] >= 1 && weight[3] >= 1, "the weight has an empty window: ", weight);
  GALLEY_CHECK(x[1] == weight[1] * a.groups, "weight needs ", weight[1] * a.groups, " input channels (", weight[1], " x ", a.groups,
               " groups), but the input has ", x[1], ": input ", x, ", weight ", weight);
}

std::vector<TensorType> infer_conv(const OpContext& c) {
  const auto& a = c.attrs<Conv2dAttrs>();
  const TensorType& x = c.in(0);
  const TensorType& w = c.in(1);
  TensorType y = x;
  y.shape = conv2d_shape(a, x.shape, w.shape);
  check_floating(x, "x");
  GALLEY_CHECK(w.dtype == x.dtype, "the weight is ", w.dtype, ", but the input is ", x.dtype);
  y.format = {};
  if (c.has(2)) GALLEY_CHECK(c.in(2).shape == Shape({w.shape[0]}), "bias must be [", w.shape[0], "], not ", c.in(2).shape);
  if (c.has(3)) check_like(c.in(3), "residual", y, "the output");
  return {y};
}

std::vector<TensorType> infer_backward_data(const OpContext& c) {
  const auto& a = c.attrs<Conv2dBackwardDataAttrs>();
  const TensorType& grad = c.in(0);
  const Shape& w = c.in(1).shape;
  const auto size = pair(a.input_size);
  TensorType dx = grad;
  dx.shape = Shape{grad.shape[0], w[1] * a.groups, size[0], size[1]};
  dx.format = {};
  check_operands(a, dx.shape, w);
  const Shape expected{grad.shape[0], w[0], output_size(a, 0, size[0], w[2]), output_size(a, 1, size[1], w[3])};
  GALLEY_CHECK(grad.shape == expected, "the gradient must be ", expected, ", not ", grad.shape);
  if (c.has(2)) check_like(c.in(2), "residual", dx, "the input");
  return {dx};
}

std::vector<TensorType> infer_backward_weights(const OpContext& c) {
  const auto& a = c.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType& x = c.in(0);
  const Shape& grad = c.in(1).shape;
  const auto size = pair(a.kernel_size);
  GALLEY_CHECK(x.shape.rank() == 4 && grad.rank() == 4, "input and gradient must be [N,C,H,W]: input ", x.shape, ", gradient ", grad);
  TensorType dw;
  dw.dtype = x.dtype;
  dw.shape = Shape{grad[1], x.shape[1] / a.groups, size[0], size[1]};
  check_operands(a, x.shape, dw.shape);
  const Shape expected{x.shape[0], grad[1], output_size(a, 0, x.shape[2], size[0]), output_size(a, 1, x.shape[3], size[1])};
  GALLEY_CHECK(grad == expected, "the gradient must be ", expected, ", not ", grad);
  return {dw};
}

double macs(int64_t outputs, const Shape& weight) {
  return static_cast<double>(outputs) * static_cast<double>(weight[1] * weight[2] * weight[3]);
}
Cost cost_forward(const OpContext& c) { return operand_cost(c, 2 * macs(c.out(0).elements(), c.in(1).shape)); }
Cost cost_backward_data(const OpContext& c) { return operand_cost(c, 2 * macs(c.in(0).elements(), c.in(1).shape)); }
Cost cost_backward_weights(const OpContext& c) { return operand_cost(c, 2 * macs(c.in(1).elements(), c.out(0).shape)); }

void gradient(GradientBuilder& g) {
  const auto& a = g.attrs<Conv2dAttrs>();
  GALLEY_ASSERT(a.activation == Activation::kNone && !g.in(3), "a fused convolution has no gradient; fuse only for inference");
  if (g.wants(0)) {
    Conv2dBackwardDataAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    b.input_size = {g.in(0).shape()[2], g.in(0).shape()[3]};
    g.set(0, conv2d_backward_data(g.grad(), g.in(1), b));
  }
  if (g.wants(1)) {
    Conv2dBackwardWeightsAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    b.kernel_size = {g.in(1).shape()[2], g.in(1).shape()[3]};
    g.set(1, conv2d_backward_weights(g.in(0), g.grad(), b));
  }
  if (g.in(2) && g.wants(2)) g.set(2, cast(sum(g.grad(), {0, 2, 3}), g.in(2).dtype()));
}

}  // namespace

void window_options(OptionVisitor& v, Conv2dWindow& a) {
  v.option({.name = "stride", .doc = "stride of the window, rows and columns", .min = 1}, a.stride);
  v.option({.name = "padding", .doc = "zero padding around the input, rows and columns", .min = 0}, a.padding);
  v.option({.name = "dilation", .doc = "spacing between the kernel's elements, rows and columns", .min = 1}, a.dilation);
  v.option({.name = "groups", .doc = "number of independent groups of channels", .min = 1}, a.groups);
}
void Conv2dAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}
void Conv2dBackwardDataAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.option({.name = "input_size", .doc = "rows and columns of the input of the forward operator", .min = 0}, input_size);
}
void Conv2dBackwardWeightsAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.option({.name = "kernel_size", .doc = "rows and columns of the weight", .min = 1}, kernel_size);
}

Shape conv2d_shape(const Conv2dWindow& a, const Shape& x, const Shape& weight) {
  check_operands(a, x, weight);
  return {x[0], weight[0], output_size(a, 0, x[2], weight[2]), output_size(a, 1, x[3], weight[3])};
}

namespace {
void conv2d_on_integers(IntegerBuilder& b) {
  const auto& real = b.attrs<Conv2dAttrs>();
  QuantizedConv2dAttrs attrs;
  static_cast<Conv2dWindow&>(attrs) = real;
  attrs.activation = real.activation;
  attrs.saturation = saturation_of(b.weight());
  set_input_and_result(b, attrs);
  if (b.in(3)) attrs.set_residual(b.map(3));
  b.set(quantized_conv2d(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs, b.in(3)));
}
}  // namespace

const OpDef& conv2d_op() {
  static const OpDef def{.name = "conv2d",
                         .doc = "two-dimensional convolution (cross-correlation), with bias, residual and activation",
                         .inputs = {"x", Port::weight("weight"), Port::statistics("bias?"), "residual?"},
                         .outputs = {"y"},
                         .make_attrs = make_options<Conv2dAttrs>,
                         .infer = infer_conv,
                         .gradient = gradient,
                         .cost = cost_forward,
                         .work = WorkClass::kProduct,
                         .layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads},
                         .precision = PrecisionRule::kLow,
                         .quantize = QuantizeRule::kProduct,
                         .definition = definition::conv2d,
                         .integer_form = conv2d_on_integers,
                         .cases = {"conv2d:mb16ic64ih56oc64kh3", "conv2d:mb16ic256ih14oc1024kh1", "conv2d:mb32ic96ih56oc96kh3sh2g96"},
                         .letters = CaseLetters::kConvolution};
  return def;
}
const OpDef& conv2d_backward_data_op() {
  static const OpDef def{.name = "conv2d_backward_data",
                         .doc = "gradient of a convolution's input",
                         .inputs = {"grad", Port::weight("weight"), "residual?"},
                         .outputs = {"dx"},
                         .make_attrs = make_options<Conv2dBackwardDataAttrs>,
                         .infer = infer_backward_data,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward_data,
                         .work = WorkClass::kProduct,
                         .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},
                         .precision = PrecisionRule::kLow,
                         .may_reuse = {{0, 2}},
                         .definition = definition::conv2d_backward_data,
                         .cases = {"conv2d_backward_data:mb16ic64ih56oc64kh3", "conv2d_backward_data:mb16ic256ih14oc1024kh1"},
                         .letters = CaseLetters::kConvolution};
  return def;
}
const OpDef& conv2d_backward_weights_op() {
  static const OpDef def{
      .name = "conv2d_backward_weights",
      .doc = "gradient of a convolution's weight",
      .inputs = {"x", "grad"},
      .outputs = {Port::weight("dw")},
      .make_attrs = make_options<Conv2dBackwardWeightsAttrs>,
      .infer = infer_backward_weights,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_backward_weights,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},  // the output is a weight, so it is never channels_last
      .precision = PrecisionRule::kLow,
      .cases = {"conv2d_backward_weights:mb16ic64ih56oc64kh3", "conv2d_backward_weights:mb16ic256ih14oc1024kh1"},
      .letters = CaseLetters::kConvolution};
  return def;
}

OpTable conv_ops() { return {&conv2d_op(), &conv2d_backward_data_op(), &conv2d_backward_weights_op()}; }

Value conv2d(Value x, Value weight, Value bias, const Conv2dAttrs& attrs, Value residual) {
  return emit("conv2d", {x, weight, bias, residual}, attrs);
}
Value conv2d_backward_data(Value grad, Value weight, const Conv2dBackwardDataAttrs& attrs, Value residual) {
  return emit("conv2d_backward_data", {grad, weight, residual}, attrs);
}
Value conv2d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs) {
  return emit("conv2d_backward_weights", {x, grad}, attrs);
}

}  // namespace galley
