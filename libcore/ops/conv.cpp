#include "libcore/ops/conv.h"

#include <algorithm>

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

/// The number of windows along an axis, [depth,] rows, columns.
int64_t output_size(const Conv2dWindow& a, int axes, int axis, int64_t in, int64_t kernel) {
  constexpr std::array<std::string_view, 3> kNames{" frames", " rows", " columns"};
  const auto i = static_cast<size_t>(axis);
  const int64_t span = per_axis(a.dilation, axes)[i] * (kernel - 1) + 1, padded = in + 2 * per_axis(a.padding, axes)[i];
  GALLEY_CHECK(padded >= span, "the kernel covers ", span, kNames[static_cast<size_t>(axis + 3 - axes)], ", but the padded input has ",
               padded);
  return (padded - span) / per_axis(a.stride, axes)[i] + 1;
}

/// The shape of the result with these channels.
Shape output_shape(const Conv2dWindow& a, const Shape& x, const Shape& weight) {
  Shape y{x[0], weight[0]};
  for (int axis = 0; axis < x.rank() - 2; ++axis) y.push_back(output_size(a, x.rank() - 2, axis, x[2 + axis], weight[2 + axis]));
  return y;
}

void check_window(const Conv2dWindow& a, int axes) {
  for (int axis = 0; axis < axes; ++axis) {
    const auto i = static_cast<size_t>(axis);
    GALLEY_CHECK(per_axis(a.stride, axes)[i] >= 1, "stride must be at least 1");
    GALLEY_CHECK(per_axis(a.dilation, axes)[i] >= 1, "dilation must be at least 1");
    GALLEY_CHECK(per_axis(a.padding, axes)[i] >= 0, "padding cannot be negative");
  }
  GALLEY_CHECK(a.groups >= 1, "groups must be at least 1");
}

std::string_view image_names(int axes) { return axes == 2 ? "[N,C,H,W]" : "[N,C,D,H,W]"; }

void check_operands(const Conv2dWindow& a, int axes, const Shape& x, const Shape& weight) {
  check_window(a, axes);
  GALLEY_CHECK(x.rank() == axes + 2, "the input must be ", image_names(axes), ", not ", x);
  GALLEY_CHECK(weight.rank() == axes + 2, "the weight must be [O,C/groups,", axes == 2 ? "kh,kw]" : "kd,kh,kw]", ", not ", weight);
  GALLEY_CHECK(weight[0] % a.groups == 0, "the weight's ", weight[0], " output channels are not a multiple of ", a.groups,
               " groups: weight ", weight);
  for (int axis = 0; axis < axes; ++axis) GALLEY_CHECK(weight[2 + axis] >= 1, "the weight has an empty window: ", weight);
  GALLEY_CHECK(x[1] == weight[1] * a.groups, "weight needs ", weight[1] * a.groups, " input channels (", weight[1], " x ", a.groups,
               " groups), but the input has ", x[1], ": input ", x, ", weight ", weight);
}

/// Two leading dimensions, then the sizes of an attribute.
Shape with_sizes(int64_t first, int64_t second, const std::vector<int64_t>& sizes) {
  Shape shape{first, second};
  for (const int64_t size : sizes) shape.push_back(size);
  return shape;
}

template <int Axes>
std::vector<TensorType> infer_conv(const OpContext& c) {
  const auto& a = c.attrs<Conv2dAttrs>();
  const TensorType& x = c.in(0);
  const TensorType& w = c.in(1);
  check_operands(a, Axes, x.shape, w.shape);
  TensorType y = x;
  y.shape = output_shape(a, x.shape, w.shape);
  check_floating(x, "x");
  GALLEY_CHECK(w.dtype == x.dtype, "the weight is ", w.dtype, ", but the input is ", x.dtype);
  y.format = {};
  if (c.has(2)) GALLEY_CHECK(c.in(2).shape == Shape({w.shape[0]}), "bias must be [", w.shape[0], "], not ", c.in(2).shape);
  if (c.has(3)) check_like(c.in(3), "residual", y, "the output");
  return {y};
}

template <int Axes>
std::vector<TensorType> infer_backward_data(const OpContext& c) {
  const auto& a = c.attrs<Conv2dBackwardDataAttrs>();
  const TensorType& grad = c.in(0);
  const Shape& w = c.in(1).shape;
  GALLEY_CHECK(grad.shape.rank() == Axes + 2, "the gradient must be ", image_names(Axes), ", not ", grad.shape);
  GALLEY_CHECK(w.rank() == Axes + 2, "the weight must have ", Axes + 2, " dimensions, not ", w);
  TensorType dx = grad;
  dx.shape = with_sizes(grad.shape[0], w[1] * a.groups, per_axis(a.input_size, Axes));
  dx.format = {};
  check_operands(a, Axes, dx.shape, w);
  const Shape expected = output_shape(a, dx.shape, w);
  GALLEY_CHECK(grad.shape == expected, "the gradient must be ", expected, ", not ", grad.shape);
  if (c.has(2)) check_like(c.in(2), "residual", dx, "the input");
  return {dx};
}

template <int Axes>
std::vector<TensorType> infer_backward_weights(const OpContext& c) {
  const auto& a = c.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType& x = c.in(0);
  const Shape& grad = c.in(1).shape;
  GALLEY_CHECK(x.shape.rank() == Axes + 2 && grad.rank() == Axes + 2, "input and gradient must be ", image_names(Axes), ": input ", x.shape,
               ", gradient ", grad);
  TensorType dw;
  dw.dtype = x.dtype;
  dw.shape = with_sizes(grad[1], x.shape[1] / a.groups, per_axis(a.kernel_size, Axes));
  check_operands(a, Axes, x.shape, dw.shape);
  const Shape expected = output_shape(a, x.shape, dw.shape);
  GALLEY_CHECK(grad == expected, "the gradient must be ", expected, ", not ", grad);
  return {dw};
}

double macs(int64_t outputs, const Shape& weight) {
  return static_cast<double>(outputs) * static_cast<double>(weight.elements() / std::max<int64_t>(1, weight[0]));
}
Cost cost_forward(const OpContext& c) { return operand_cost(c, 2 * macs(c.out(0).elements(), c.in(1).shape)); }
Cost cost_backward_data(const OpContext& c) { return operand_cost(c, 2 * macs(c.in(0).elements(), c.in(1).shape)); }
Cost cost_backward_weights(const OpContext& c) { return operand_cost(c, 2 * macs(c.in(1).elements(), c.out(0).shape)); }

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int axis = 2; axis < shape.rank(); ++axis) sizes.push_back(shape[axis]);
  return sizes;
}

template <int Axes>
void gradient(GradientBuilder& g) {
  const auto& a = g.attrs<Conv2dAttrs>();
  GALLEY_ASSERT(a.activation == Activation::kNone && !g.in(3), "a fused convolution has no gradient; fuse only for inference");
  if (g.wants(0)) {
    Conv2dBackwardDataAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    b.input_size = sizes_of(g.in(0).shape());
    g.set(0, (Axes == 2 ? conv2d_backward_data : conv3d_backward_data)(g.grad(), g.in(1), b, {}));
  }
  if (g.wants(1)) {
    Conv2dBackwardWeightsAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    b.kernel_size = sizes_of(g.in(1).shape());
    g.set(1, (Axes == 2 ? conv2d_backward_weights : conv3d_backward_weights)(g.in(0), g.grad(), b));
  }
  if (!g.in(2) || !g.wants(2)) return;
  g.set(2, cast(sum(g.grad(), Axes == 2 ? std::vector<int64_t>{0, 2, 3} : std::vector<int64_t>{0, 2, 3, 4}), g.in(2).dtype()));
}

/// A convolution's backward operator is also a transposed convolution, a layer of its own.
template <int Axes>
void gradient_of_data(GradientBuilder& g) {
  const auto& a = g.attrs<Conv2dBackwardDataAttrs>();
  if (g.wants(0)) {
    Conv2dAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    g.set(0, (Axes == 2 ? conv2d : conv3d)(g.grad(), g.in(1), {}, b, {}));
  }
  if (g.wants(1)) {
    Conv2dBackwardWeightsAttrs b;
    static_cast<Conv2dWindow&>(b) = a;
    b.kernel_size = sizes_of(g.in(1).shape());
    g.set(1, (Axes == 2 ? conv2d_backward_weights : conv3d_backward_weights)(g.grad(), g.in(0), b));
  }
  if (g.in(2) && g.wants(2)) g.set(2, g.grad());
}

}  // namespace

void window_options(OptionVisitor& v, Conv2dWindow& a) {
  v.option({.name = "stride", .doc = "stride of the window, [depth,] rows and columns", .min = 1}, a.stride);
  v.option({.name = "padding", .doc = "zero padding around the input, [depth,] rows and columns", .min = 0}, a.padding);
  v.option({.name = "dilation", .doc = "spacing between the kernel's elements, [depth,] rows and columns", .min = 1}, a.dilation);
  v.option({.name = "groups", .doc = "number of independent groups of channels", .min = 1}, a.groups);
}
void Conv2dAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}
void Conv2dBackwardDataAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.option({.name = "input_size", .doc = "[depth,] rows and columns of the input of the forward operator", .min = 0}, input_size);
}
void Conv2dBackwardWeightsAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  v.option({.name = "kernel_size", .doc = "[depth,] rows and columns of the weight", .min = 1}, kernel_size);
}

Shape conv_shape(const Conv2dWindow& a, const Shape& x, const Shape& weight) {
  check_operands(a, x.rank() == 5 ? 3 : 2, x, weight);
  return output_shape(a, x, weight);
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

namespace {

OpDef conv_def(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x", Port::weight("weight"), Port::statistics("bias?"), "residual?"},
          .outputs = {"y"},
          .make_attrs = make_options<Conv2dAttrs>,
          .cost = cost_forward,
          .work = WorkClass::kProduct,
          .layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads},
          .precision = PrecisionRule::kLow};
}

OpDef conv_backward_data_def(std::string_view name) {
  return {.name = name,
          .doc = "gradient of a convolution's input",
          .inputs = {"grad", Port::weight("weight"), "residual?"},
          .outputs = {"dx"},
          .make_attrs = make_options<Conv2dBackwardDataAttrs>,
          .cost = cost_backward_data,
          .work = WorkClass::kProduct,
          .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},
          .precision = PrecisionRule::kLow,
          .may_reuse = {{0, 2}}};
}

OpDef conv_backward_weights_def(std::string_view name) {
  return {.name = name,
          .doc = "gradient of a convolution's weight",
          .inputs = {"x", "grad"},
          .outputs = {Port::weight("dw")},
          .make_attrs = make_options<Conv2dBackwardWeightsAttrs>,
          .no_gradient = kNoSecondDerivative,
          .cost = cost_backward_weights,
          .work = WorkClass::kProduct,
          // The output is a weight, so it is never channels_last.
          .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},
          .precision = PrecisionRule::kLow};
}

}  // namespace

const OpDef& conv2d_op() {
  static const OpDef def = [] {
    OpDef op = conv_def("conv2d", "two-dimensional convolution (cross-correlation), with bias, residual and activation");
    op.infer = infer_conv<2>;
    op.gradient = gradient<2>;
    op.quantize = QuantizeRule::kProduct;
    op.definition = definition::conv2d;
    op.integer_form = conv2d_on_integers;
    op.f8_form = conv2d_on_f8;
    op.cases = {"conv2d:mb16ic64ih56oc64kh3", "conv2d:mb16ic256ih14oc1024kh1", "conv2d:mb32ic96ih56oc96kh3sh2g96"};
    op.letters = CaseLetters::kConvolution;
    return op;
  }();
  return def;
}
const OpDef& conv2d_backward_data_op() {
  static const OpDef def = [] {
    OpDef op = conv_backward_data_def("conv2d_backward_data");
    op.infer = infer_backward_data<2>;
    op.gradient = gradient_of_data<2>;
    op.definition = definition::conv2d_backward_data;
    op.cases = {"conv2d_backward_data:mb16ic64ih56oc64kh3", "conv2d_backward_data:mb16ic256ih14oc1024kh1"};
    op.letters = CaseLetters::kConvolution;
    return op;
  }();
  return def;
}
const OpDef& conv2d_backward_weights_op() {
  static const OpDef def = [] {
    OpDef op = conv_backward_weights_def("conv2d_backward_weights");
    op.infer = infer_backward_weights<2>;
    op.cases = {"conv2d_backward_weights:mb16ic64ih56oc64kh3", "conv2d_backward_weights:mb16ic256ih14oc1024kh1"};
    op.letters = CaseLetters::kConvolution;
    return op;
  }();
  return def;
}

const OpDef& conv3d_op() {
  static const OpDef def = [] {
    OpDef op = conv_def("conv3d", "three-dimensional convolution (cross-correlation), with bias, residual and activation");
    op.infer = infer_conv<3>;
    op.gradient = gradient<3>;
    op.definition = definition::conv3d;
    op.cases = {"conv3d:2x64x8x56x56+64x64x3x3x3:padding=1"};
    return op;
  }();
  return def;
}
const OpDef& conv3d_backward_data_op() {
  static const OpDef def = [] {
    OpDef op = conv_backward_data_def("conv3d_backward_data");
    op.infer = infer_backward_data<3>;
    op.gradient = gradient_of_data<3>;
    op.definition = definition::conv3d_backward_data;
    op.cases = {"conv3d_backward_data:2x64x8x56x56+64x64x3x3x3:padding=1,input_size=[8,56,56]"};
    return op;
  }();
  return def;
}
const OpDef& conv3d_backward_weights_op() {
  static const OpDef def = [] {
    OpDef op = conv_backward_weights_def("conv3d_backward_weights");
    op.infer = infer_backward_weights<3>;
    op.definition = definition::conv3d_backward_weights;
    op.cases = {"conv3d_backward_weights:2x64x8x56x56+2x64x8x56x56:padding=1,kernel_size=3"};
    return op;
  }();
  return def;
}

OpTable conv_ops() {
  return {&conv2d_op(), &conv2d_backward_data_op(), &conv2d_backward_weights_op(),
          &conv3d_op(), &conv3d_backward_data_op(), &conv3d_backward_weights_op()};
}

Value conv2d(Value x, Value weight, Value bias, const Conv2dAttrs& attrs, Value residual) {
  return emit("conv2d", {x, weight, bias, residual}, attrs);
}
Value conv2d_backward_data(Value grad, Value weight, const Conv2dBackwardDataAttrs& attrs, Value residual) {
  return emit("conv2d_backward_data", {grad, weight, residual}, attrs);
}
Value conv2d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs) {
  return emit("conv2d_backward_weights", {x, grad}, attrs);
}
Value conv3d(Value x, Value weight, Value bias, const Conv2dAttrs& attrs, Value residual) {
  return emit("conv3d", {x, weight, bias, residual}, attrs);
}
Value conv3d_backward_data(Value grad, Value weight, const Conv2dBackwardDataAttrs& attrs, Value residual) {
  return emit("conv3d_backward_data", {grad, weight, residual}, attrs);
}
Value conv3d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs) {
  return emit("conv3d_backward_weights", {x, grad}, attrs);
}

}  // namespace galley
