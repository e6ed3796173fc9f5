#include "libcore/backends/cpu/rewrite/winograd.h"

#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/rewrite/definitions.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer_weights(const OpContext& c) {
  const TensorType& w = c.in(0);
  check_floating(w, "weight");
  GALLEY_CHECK(w.shape.rank() == 4 && w.shape[2] == winograd::kTaps && w.shape[3] == winograd::kTaps, "the weight must be [O,C,3,3], is ",
               w.shape);
  const bool backward = c.attrs<WinogradWeightsAttrs>().backward;
  TensorType made;
  made.dtype = w.dtype;
  made.shape = {winograd::kPositions, w.shape[backward ? 1 : 0], w.shape[backward ? 0 : 1]};
  made.format = winograd::transformed_format();
  return {made};
}

std::vector<TensorType> infer_conv(const OpContext& c) {
  const TensorType &x = c.in(0), &w = c.in(1);
  const auto padding = pair(c.attrs<WinogradConv2dAttrs>().padding);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 4, "the input must be [N,C,H,W], is ", x.shape);
  GALLEY_CHECK(w.dtype == x.dtype, "weight is ", w.dtype, ", input ", x.dtype);
  GALLEY_CHECK(w.shape.rank() == 3 && w.shape[0] == winograd::kPositions && w.shape[2] == x.shape[1], "the weight must be [36,O,",
               x.shape[1], "], is ", w.shape, "; input ", x.shape);
  TensorType y = x;
  y.shape = {x.shape[0], w.shape[1], x.shape[2] + 2 * padding[0] - 2, x.shape[3] + 2 * padding[1] - 2};
  GALLEY_CHECK(padding[0] >= 0 && padding[1] >= 0 && y.shape[2] >= 1 && y.shape[3] >= 1, "the padded input ", x.shape,
               " is smaller than 3 x 3");
  y.format = {};
  if (c.has(2)) GALLEY_CHECK(c.in(2).shape == Shape({w.shape[1]}), "bias must be [", w.shape[1], "], is ", c.in(2).shape);
  if (c.has(3)) check_like(c.in(3), "residual", y, "the output");
  return {y};
}

/// Work that the plain convolution does not have: 3 + 6 rows or columns of 12 operations for a kernel.
Cost cost_weights(const OpContext& c) {
  Cost cost = operand_cost(c, 0);
  cost.saved_flops = -9.0 * 12 * static_cast<double>(c.in(0).shape[0] * c.in(0).shape[1]);
  return cost;
}

/// The cost of the plain convolution and the operations that Winograd saves.
Cost cost_conv(const OpContext& c) {
  const Shape& y = c.out(0).shape;
  Cost cost =
      operand_cost(c, 2.0 * winograd::kTaps * winograd::kTaps * static_cast<double>(c.in(0).shape[1]) * static_cast<double>(y.elements()));
  cost.saved_flops = cost.flops - winograd::executed_flops(c.in(0).shape, y);
  return cost;
}

std::vector<TensorType> infer_backward_weights(const OpContext& c) {
  std::vector<TensorType> made = infer_part(conv2d_backward_weights_op(), c.attrs<Conv2dBackwardWeightsAttrs>(), {&c.in(0), &c.in(1)});
  GALLEY_CHECK(winograd::fits(c.attrs<Conv2dBackwardWeightsAttrs>(), made[0].shape),
               "the window must be 3 x 3, neither strided, dilated nor grouped");
  return made;
}

Cost cost_backward_weights(const OpContext& c) {
  Cost cost = conv2d_backward_weights_op().cost(c);
  cost.saved_flops = cost.flops - winograd::executed_flops(c.in(0).shape, c.in(1).shape);
  return cost;
}

}  // namespace

MemoryFormat winograd::transformed_format() { return MemoryFormat::blocked("aBc16b"); }

double winograd::executed_flops(const Shape& x, const Shape& y) {
  const auto count = static_cast<double>(y[0] * tiles(y[2], y[3])), in = static_cast<double>(x[1]), out = static_cast<double>(y[1]);
  return count * (2.0 * kPositions * in * out + 144 * in + 120 * out);
}

bool winograd::fits(const Conv2dWindow& window, const Shape& weight) {
  const std::array<int64_t, 2> one{1, 1};
  return weight[2] == kTaps && weight[3] == kTaps && window.groups == 1 && pair(window.stride) == one && pair(window.dilation) == one;
}

bool winograd::worthwhile(const Shape& x, const Shape& y, bool fixed) {
  const auto in = static_cast<double>(x[1]), out = static_cast<double>(y[1]), count = static_cast<double>(y[0] * tiles(y[2], y[3]));
  // In operations at the rate of plain convolutions: products reach four fifths of it; a tile's transforms move 36 or 52 lines for their
  // few additions; the transformed kernels come from memory, to which they are written first where they change.
  const double plain = 2.0 * kTaps * kTaps * static_cast<double>(y[0] * y[2] * y[3]) * in * out;
  const auto number = [](const Threshold& t) { return static_cast<double>(t.value); };
  using namespace conv_threshold;
  const double products = 2.0 * kPositions / (number(kWinogradProductsPercent) / 100) * count * in * out,
               transforms = number(kWinogradTransform) * count * (in + out),
               kernels = kPositions * in * out * number(fixed ? kWinogradFixedKernel : kWinogradChangingKernel);
  return plain > number(kWinogradMarginPercent) / 100 * (products + transforms + kernels);
}

void WinogradWeightsAttrs::options(OptionVisitor& v) { v.option({.name = "backward", .doc = "for the gradient of the input"}, backward); }
void WinogradConv2dAttrs::options(OptionVisitor& v) {
  v.option({.name = "padding", .doc = "zero padding around the input, rows and columns", .min = 0}, padding);
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}

const OpDef& winograd_weights_op() {
  static const OpDef def{.name = "winograd_weights",
                         .doc = "3 x 3 kernels transformed for winograd_conv2d (Lavin and Gray 2016)",
                         .inputs = {Port::weight("weight")},
                         .outputs = {Port::weight("transformed")},
                         .make_attrs = make_options<WinogradWeightsAttrs>,
                         .infer = infer_weights,
                         .no_gradient = kAfterDifferentiation,
                         .cost = cost_weights,
                         .layout = {.formats = FormatRule::kExplicit, .weights = WeightFormat::kLeads},
                         .definition = cpu_definition::winograd_weights,
                         .made_by_rewrite = true,
                         .cases = {"winograd_weights:512x512x3x3", "winograd_weights:512x512x3x3:backward=true"}};
  return def;
}
const OpDef& winograd_conv2d_op() {
  static const OpDef def{
      .name = "winograd_conv2d",
      .doc = "3 x 3 convolution of stride 1 by Winograd's F(4x4, 3x3), with bias, residual and activation (Lavin and Gray 2016)",
      .inputs = {"x", Port::weight("transformed"), Port::statistics("bias?"), "residual?"},
      .outputs = {"y"},
      .make_attrs = make_options<WinogradConv2dAttrs>,
      .infer = infer_conv,
      .no_gradient = kAfterDifferentiation,
      .cost = cost_conv,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads},
      .definition = cpu_definition::winograd_conv2d,
      .made_by_rewrite = true,
      .variant_of = "conv2d",
      .cases = {"winograd_conv2d:16x64x56x56+36x64x64:padding=1"}};
  return def;
}

const OpDef& winograd_conv2d_backward_weights_op() {
  static const OpDef def{
      .name = "winograd_conv2d_backward_weights",
      .doc = "gradient of the weight of a 3 x 3 convolution of stride 1, by the adjoint of winograd_conv2d (Lavin and Gray 2016)",
      .inputs = {"x", "grad"},
      .outputs = {Port::weight("dw")},
      .make_attrs = make_options<Conv2dBackwardWeightsAttrs>,
      .infer = infer_backward_weights,
      .no_gradient = kAfterDifferentiation,
      .cost = cost_backward_weights,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kFollows},
      .definition = cpu_definition::winograd_conv2d_backward_weights,
      .made_by_rewrite = true,
      .variant_of = "conv2d_backward_weights",
      .cases = {"winograd_conv2d_backward_weights:16x64x56x56+16x64x56x56:padding=1,kernel_size=3"}};
  return def;
}

Value winograd_weights(Value weight, const WinogradWeightsAttrs& attrs) { return emit(winograd_weights_op(), {weight}, attrs); }
Value winograd_conv2d(Value x, Value transformed, Value bias, const WinogradConv2dAttrs& attrs, Value residual) {
  return emit(winograd_conv2d_op(), {x, transformed, bias, residual}, attrs);
}
Value winograd_conv2d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs) {
  return emit(winograd_conv2d_backward_weights_op(), {x, grad}, attrs);
}

}  // namespace galley
