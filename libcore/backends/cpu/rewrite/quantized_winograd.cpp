#include "libcore/backends/cpu/rewrite/quantized_winograd.h"

#include <cmath>

#include "libcore/backends/cpu/quantized_thresholds.h"
#include "libcore/backends/cpu/rewrite/definitions.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kAfterConversion = "a rewrite of the CPU back end makes it after the conversion to integers";

std::vector<TensorType> infer_weights(const OpContext& c) {
  const TensorType& w = c.in(0);
  GALLEY_CHECK(w.dtype == DType::kI8, "weight must be i8, is ", w);
  GALLEY_CHECK(w.shape.rank() == 4 && w.shape[2] == winograd::kTaps && w.shape[3] == winograd::kTaps, "the weight must be [O,C,3,3], is ",
               w.shape);
  TensorType made;
  made.dtype = DType::kI16;
  made.shape = {w.shape[0], winograd::kPositions, w.shape[1]};
  made.format = winograd::whole_format();
  return {made};
}

std::vector<TensorType> infer_conv(const OpContext& c) {
  const auto& a = c.attrs<QuantizedConv2dAttrs>();
  const TensorType& w = c.in(1);
  GALLEY_CHECK(w.dtype == DType::kI16 && w.shape.rank() == 3 && w.shape[1] == winograd::kPositions, "the weight must be i16 [O,36,C], is ",
               w);
  const Shape weight{w.shape[0], w.shape[2], winograd::kTaps, winograd::kTaps};
  GALLEY_CHECK(winograd::fits(a, weight), "the window must be 3 x 3, neither strided, dilated nor grouped");
  return infer_quantized_conv2d(c, weight);
}

/// Work that the plain convolution does not have: 3 + 6 rows or columns of 10 operations for a kernel.
Cost cost_weights(const OpContext& c) {
  Cost cost = operand_cost(c, 0);
  cost.saved_flops = -9.0 * 10 * static_cast<double>(c.in(0).shape[0] * c.in(0).shape[1]);
  return cost;
}

/// The cost of the plain convolution and the operations that Winograd saves.
Cost cost_conv(const OpContext& c) {
  const Shape& y = c.out(0).shape;
  Cost cost =
      operand_cost(c, 2.0 * winograd::kTaps * winograd::kTaps * static_cast<double>(c.in(0).shape[1]) * static_cast<double>(y.elements()));
  cost.saved_flops = cost.flops - winograd::executed_whole_flops(c.in(0).shape, y);
  cost.dtype = DType::kI8;
  return cost;
}

double tiles_of(const Shape& y) { return static_cast<double>(y[0] * winograd::tiles(y[2], y[3])); }

}  // namespace

MemoryFormat winograd::whole_format() { return MemoryFormat::blocked("AbC16a2c"); }

double winograd::executed_whole_flops(const Shape& x, const Shape& y) {
  const auto in = static_cast<double>(x[1]), out = static_cast<double>(y[1]);
  return tiles_of(y) * (2.0 * kPositions * in * out + 200 * in + 180 * out);
}

bool winograd::worthwhile_whole(const Shape& x, const Shape& y) {
  const auto up = [](int64_t channels) { return static_cast<double>((channels + 15) / 16 * 16); };
  const double in = static_cast<double>(x[1]), out = static_cast<double>(y[1]), parts = std::ceil(in / kMostChannels);
  // In operations at the rate of plain convolutions, as worthwhile(): the transforms work on 16 channels at a time; the transformed kernels
  // come from memory.
  const double plain = 2.0 * kTaps * kTaps * static_cast<double>(y[0] * y[2] * y[3]) * in * out;
  const auto number = [](const Threshold& t) { return static_cast<double>(t.value); };
  using namespace quantized_threshold;
  const double products = 2.0 * kPositions / (number(kWinogradProductsPercent) / 100) * tiles_of(y) * in * out,
               transforms =
                   tiles_of(y) * (number(kWinogradImageTransform) * up(x[1]) + number(kWinogradResultTransform) * parts * up(y[1])),
               kernels = kPositions * in * out * number(kWinogradKernel);
  return plain > number(kWinogradMarginPercent) / 100 * (products + transforms + kernels);
}

const OpDef& quantized_winograd_weights_op() {
  static const OpDef def{.name = "quantized_winograd_weights",
                         .doc = "3 x 3 kernels transformed for quantized_winograd_conv2d, to whole numbers",
                         .inputs = {Port::weight("weight")},
                         .outputs = {Port::weight("transformed")},
                         .infer = infer_weights,
                         .no_gradient = kAfterConversion,
                         .cost = cost_weights,
                         .layout = {.formats = FormatRule::kExplicit, .weights = WeightFormat::kLeads},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = cpu_definition::quantized_winograd_weights,
                         .made_by_rewrite = true};
  return def;
}
const OpDef& quantized_winograd_conv2d_op() {
  static const OpDef def{
      .name = "quantized_winograd_conv2d",
      .doc =
          "quantized_conv2d of 3 x 3 and stride 1 by Winograd's F(4x4, 3x3) on whole numbers: the same integers from a quarter of the "
          "products",
      .inputs = {"x", Port::weight("transformed"), Port::statistics("weight_scale"), Port::statistics("bias?"), "residual?"},
      .outputs = {"y"},
      .make_attrs = make_options<QuantizedConv2dAttrs>,
      .infer = infer_conv,
      .no_gradient = kAfterConversion,
      .cost = cost_conv,
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads},
      .precision = PrecisionRule::kKeepF32,
      .definition = cpu_definition::quantized_winograd_conv2d,
      .integer = IntegerRole::kComputes,
      .made_by_rewrite = true,
      .variant_of = "quantized_conv2d"};
  return def;
}

Value quantized_winograd_weights(Value weight) {
  return emit_all(quantized_winograd_weights_op(), nullptr, std::vector<Value>{weight}).front();
}
Value quantized_winograd_conv2d(Value x, Value transformed, Value weight_scale, Value bias, const QuantizedConv2dAttrs& attrs,
                                Value residual) {
  return emit(quantized_winograd_conv2d_op(), {x, transformed, weight_scale, bias, residual}, attrs);
}

}  // namespace galley
