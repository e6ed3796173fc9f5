// Cases of operators on quantized values.

#include <cmath>

#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

double single(double value) { return static_cast<double>(static_cast<float>(value)); }
int64_t lowest(DType dtype) { return dtype == DType::kI8 ? -128 : 0; }
QuantParams params(double scale, int64_t zero_point, DType dtype) {
  return {single(scale), zero_point, dtype, lowest(dtype), lowest(dtype) + 255};
}

struct QuantizedGeometry {
  std::string name;
  Shape x, weight;
  Conv2dWindow window;
  bool bias = false;
};

Conv2dWindow window(std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation, int64_t groups) {
  Conv2dWindow a;
  a.stride = std::move(stride);
  a.padding = std::move(padding);
  a.dilation = std::move(dilation);
  a.groups = groups;
  return a;
}

/// Parameters besides the sizes. Integers have their full ranges, so that saturating 16-bit sums of two products are detected.
struct Variant {
  std::string name;
  DType x = DType::kU8, y = DType::kU8, residual = DType::kF32;  // f32: none
  Activation activation = Activation::kNone;
  Saturation saturation = Saturation::kExact;
  int64_t x_high = 255, w_high = 127;
  bool powers = false;  // of two: every scale
  bool winograd = false;
};

/// Captures the case with scales for which the results cover their range.
void capture_conv(CaseInputs& in, const QuantizedGeometry& g, const Variant& v) {
  const Value x = in.quantized(v.x, g.x, lowest(v.x), lowest(v.x) + v.x_high),
              weight = in.quantized(DType::kI8, g.weight, v.w_high == 127 ? -128 : -v.w_high, v.w_high, ValueRole::kParameter);
  const double products = static_cast<double>(std::max<int64_t>(1, g.weight.elements() / g.weight[0]));
  const double width = std::sqrt(products) * static_cast<double>(v.x_high * v.w_high) * 0.33;  // standard deviation of the sums
  QuantizedConv2dAttrs a;
  static_cast<Conv2dWindow&>(a) = g.window;
  a.activation = v.activation;
  a.saturation = v.saturation;
  a.set_input(params(v.powers ? 0x1p-5 : 0.037, lowest(v.x) + v.x_high / 3, v.x));
  const double step = a.input_scale * 0.01 * width / 40;
  if (v.y != DType::kF32) a.set_output(params(v.powers ? std::exp2(std::round(std::log2(step))) : step, lowest(v.y) + 100, v.y));
  const Value scale = v.powers ? in.values({g.weight[0]}, std::vector<double>(static_cast<size_t>(g.weight[0]), 0x1p-7), DType::kF32)
                               : in.f32({g.weight[0]}, {.low = 0.004, .high = 0.016});
  Value bias = {};
  if (g.bias && v.powers) {
    bias = in.values({g.weight[0]}, std::vector<double>(static_cast<size_t>(g.weight[0]), a.output_scale * 0.5), DType::kF32);
  } else if (g.bias) {
    bias = in.f32({g.weight[0]}, {.low = -20 * step, .high = 20 * step});
  }
  Value residual = {};
  if (v.residual != DType::kF32) {
    residual = in.quantized(v.residual, conv_shape(g.window, g.x, g.weight), lowest(v.residual), lowest(v.residual) + 255);
    a.set_residual(params(v.powers ? a.output_scale / 2 : step * 0.7, lowest(v.residual) + 90, v.residual));
  }
  if (v.winograd) {
    quantized_winograd_conv2d(x, quantized_winograd_weights(weight), scale, bias, a, residual);
  } else {
    quantized_conv2d(x, weight, scale, bias, a, residual);
  }
}

void add_winograd_cases(std::vector<OpCase>& cases) {
  const std::vector<QuantizedGeometry> geometries{
      {"whole_tiles", {2, 16, 8, 12}, {32, 16, 3, 3}, window({1}, {1}, {1}, 1), true},
      {"edges", {1, 17, 7, 9}, {19, 17, 3, 3}, window({1}, {1}, {1}, 1), true},
      {"no_padding", {3, 24, 6, 11}, {16, 24, 3, 3}, window({1}, {0}, {1}, 1)},
      {"uneven_padding", {1, 33, 6, 4}, {40, 33, 3, 3}, window({1}, {0, 2}, {1}, 1), true},
      {"narrower_than_a_tile", {2, 18, 3, 2}, {8, 18, 3, 3}, window({1}, {1}, {1}, 1)},
      {"one_result", {2, 20, 3, 3}, {16, 20, 3, 3}, window({1}, {0}, {1}, 1)},
      {"few_channels", {1, 3, 6, 6}, {5, 3, 3, 3}, window({1}, {1}, {1}, 1)},
      {"many_tiles", {5, 16, 27, 26}, {24, 16, 3, 3}, window({1}, {1}, {1}, 1)},
      {"shares_of_channels", {1, 460, 5, 6}, {33, 460, 3, 3}, window({1}, {1}, {1}, 1), true},
  };
  const std::vector<Variant> variants{
      {.name = "u8", .winograd = true},
      {.name = "relu_residual", .residual = DType::kU8, .activation = Activation::kRelu, .winograd = true},
      {.name = "signed", .x = DType::kI8, .y = DType::kI8, .residual = DType::kI8, .activation = Activation::kHardswish, .winograd = true},
      {.name = "f32", .y = DType::kF32, .activation = Activation::kGelu, .winograd = true},
      {.name = "ties", .residual = DType::kU8, .powers = true, .winograd = true},
  };
  for (const QuantizedGeometry& g : geometries) {
    for (const Variant& v : variants) {
      cases.push_back({.name = cat("quantized_winograd_", g.name, "_", v.name),
                       .build = [=](CaseInputs& in) { capture_conv(in, g, v); },
                       .exact_ties = v.powers});
    }
  }
  for (const Shape& shape : {Shape{16, 16, 3, 3}, Shape{19, 35, 3, 3}, Shape{1, 1, 3, 3}}) {
    cases.push_back({.name = cat("quantized_winograd_weights_", shape[0], "_", shape[1]), .build = [=](CaseInputs& in) {
                       quantized_winograd_weights(in.quantized(DType::kI8, shape, -128, 127, ValueRole::kParameter));
                     }});
  }
}

std::vector<QuantizedGeometry> conv_geometries() {
  return {
      {"plain", {2, 3, 7, 5}, {4, 3, 3, 3}, window({1}, {1}, {1}, 1), true},
      {"no_padding", {1, 2, 5, 6}, {3, 2, 3, 2}, window({1}, {0}, {1}, 1)},
      {"pointwise", {2, 17, 5, 3}, {19, 17, 1, 1}, window({1}, {0}, {1}, 1), true},
      {"pointwise_wide", {1, 64, 7, 5}, {48, 64, 1, 1}, window({1}, {0}, {1}, 1), true},
      {"pointwise_strided", {2, 16, 7, 6}, {8, 16, 1, 1}, window({2}, {0}, {1}, 1)},
      {"pointwise_padded", {1, 36, 2, 3}, {33, 36, 1, 1}, window({1}, {1}, {1}, 1)},
      {"strided_groups", {2, 8, 9, 7}, {6, 4, 3, 3}, window({2, 1}, {1, 0}, {1}, 2), true},
      {"groups_of_16", {1, 32, 5, 6}, {64, 16, 3, 3}, window({1}, {1}, {1}, 2), true},
      {"dilated", {2, 3, 9, 8}, {4, 3, 3, 3}, window({1}, {2}, {2}, 1)},
      {"dilated_strided", {1, 4, 11, 9}, {5, 4, 3, 2}, window({2}, {1, 2}, {2, 3}, 1)},
      {"depthwise", {2, 19, 7, 7}, {19, 1, 3, 3}, window({1}, {1}, {1}, 19), true},
      {"depthwise_strided", {2, 35, 8, 7}, {35, 1, 3, 3}, window({2}, {1}, {1}, 35)},
      {"depthwise_5x5", {3, 24, 6, 7}, {24, 1, 5, 5}, window({1}, {2}, {1}, 24), true},
      {"depthwise_5x5_strided", {2, 16, 9, 9}, {16, 1, 5, 5}, window({2}, {2}, {1}, 16)},
      {"depthwise_7x7_wider_than_image", {1, 64, 3, 3}, {64, 1, 7, 7}, window({1}, {3}, {1}, 64)},
      {"depthwise_few_channels", {2, 5, 6, 5}, {5, 1, 3, 3}, window({1}, {1}, {1}, 5)},
      {"depthwise_multiplier", {1, 4, 5, 5}, {8, 1, 3, 3}, window({1}, {1}, {1}, 4), true},
      {"depthwise_dilated", {1, 17, 9, 9}, {17, 1, 3, 3}, window({1}, {2}, {2}, 17)},
      {"tiles", {2, 36, 5, 6}, {32, 36, 3, 3}, window({1}, {1}, {1}, 1), true},
      {"tiles_left_over", {2, 35, 6, 5}, {47, 35, 2, 3}, window({1}, {0, 2}, {1}, 1), true},
      {"tiles_strided", {2, 36, 9, 8}, {32, 36, 3, 3}, window({2}, {1}, {1}, 1)},
      {"many_channels", {1, 300, 2, 2}, {272, 300, 1, 1}, window({1}, {0}, {1}, 1), true},
      {"stem", {1, 3, 17, 15}, {8, 3, 7, 7}, window({2}, {3}, {1}, 1), true},
      {"one_channel", {2, 1, 6, 6}, {5, 1, 3, 3}, window({1}, {1}, {1}, 1), true},
      {"kernel_of_image", {3, 4, 4, 3}, {6, 4, 4, 3}, window({1}, {0}, {1}, 1), true},
      {"rows_left_over", {1, 3, 8, 10}, {4, 3, 3, 3}, window({3}, {0}, {1}, 1)},
      {"empty_batch", {0, 3, 7, 5}, {4, 3, 3, 3}, window({1}, {1}, {1}, 1), true},
  };
}

void add_conv_cases(std::vector<OpCase>& cases) {
  const std::vector<Variant> variants{
      {.name = "u8"},
      {.name = "relu_residual", .residual = DType::kU8, .activation = Activation::kRelu},
      {.name = "signed", .x = DType::kI8, .y = DType::kI8, .residual = DType::kI8},
      {.name = "f32", .y = DType::kF32},
      {.name = "reduced_weights", .saturation = Saturation::kReduced, .w_high = 64},
      {.name = "reduced_values", .saturation = Saturation::kReduced, .x_high = 127},
      {.name = "ties", .residual = DType::kU8, .powers = true},
  };
  for (const QuantizedGeometry& g : conv_geometries()) {
    for (const Variant& v : variants) {
      cases.push_back({.name = cat("quantized_conv2d_", g.name, "_", v.name),
                       .build = [=](CaseInputs& in) { capture_conv(in, g, v); },
                       .exact_ties = v.powers});
    }
  }
  const QuantizedGeometry dense{"", {2, 6, 5, 7}, {9, 6, 3, 3}, window({1}, {1}, {1}, 1), true},
      depthwise{"", {1, 18, 5, 7}, {18, 1, 3, 3}, window({1}, {1}, {1}, 18), true};
  for (int a = 0; a < static_cast<int>(kActivationNames.size()); ++a) {
    for (DType y : {DType::kU8, DType::kF32}) {
      const Variant v{.name = "", .y = y, .residual = a % 2 == 0 ? DType::kU8 : DType::kF32, .activation = static_cast<Activation>(a)};
      const std::string name = cat(kActivationNames[static_cast<size_t>(a)], "_", y);
      cases.push_back({.name = "quantized_conv2d_fused_" + name, .build = [=](CaseInputs& in) { capture_conv(in, dense, v); }});
      cases.push_back(
          {.name = "quantized_conv2d_depthwise_fused_" + name, .build = [=](CaseInputs& in) { capture_conv(in, depthwise, v); }});
    }
  }
}

void add_conv_hand_cases(std::vector<OpCase>& cases) {
  // All values at the limits of their range: 2 * 255 * -128 does not fit in 16 bits.
  cases.push_back({.name = "quantized_conv2d_saturating", .build = [](CaseInputs& in) {
                     QuantizedConv2dAttrs a;
                     a.padding = {1};
                     quantized_conv2d(in.quantized(DType::kU8, {1, 36, 4, 5}, 255, 255),
                                      in.quantized(DType::kI8, {17, 36, 3, 3}, -128, -128, ValueRole::kParameter),
                                      in.values({17}, std::vector<double>(17, 1), DType::kF32), {}, a);
                   }});
  // (1-1, 2-1, 3-1, 4-1) * (1, 2, 3, 4) = 20; times 0.5 * 2 plus 1 = 21; 21 / 4 = 5.25 -> 5, + 7; then -20 + 1 -> -4.75 -> -5 + 7
  cases.push_back({.name = "quantized_conv2d_hand",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedConv2dAttrs a;
                         a.set_input(params(0.5, 1, DType::kU8));
                         a.set_output(params(4, 7, DType::kU8));
                         quantized_conv2d(in.values({1, 1, 2, 2}, {1, 2, 3, 4}, DType::kU8),
                                          in.values({2, 1, 2, 2}, {1, 2, 3, 4, -1, -2, -3, -4}, DType::kI8),
                                          in.values({2}, {2, 2}, DType::kF32), in.values({2}, {1, 1}, DType::kF32), a);
                       },
                   .expected = {12, 2}});
  // Padding counts as the zero point: only the middle tap (9 - 4) * 2 = 10; residual 3 * (6 - 5) = 3; relu6 -> 6.
  cases.push_back({.name = "quantized_conv2d_padding_hand",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedConv2dAttrs a;
                         a.padding = {1};
                         a.activation = Activation::kRelu6;
                         a.set_input(params(1, 4, DType::kU8));
                         a.set_residual(params(3, 5, DType::kU8));
                         quantized_conv2d(in.values({1, 1, 1, 2}, {9, 4}, DType::kU8),
                                          in.values({1, 1, 3, 3}, {7, 7, 7, 7, 2, 7, 7, 7, 7}, DType::kI8),
                                          in.values({1}, {1}, DType::kF32), {}, a, in.values({1, 1, 1, 2}, {6, 4}, DType::kU8));
                       },
                   .expected = {6, 6}});
}

void add_linear_cases(std::vector<OpCase>& cases) {
  for (const auto& [name, x, outputs] : {std::tuple<std::string, Shape, int64_t>{"plain", {5, 7}, 11},
                                         {"one_row", {1, 256}, 40},
                                         {"rows", {33, 132}, 65},
                                         {"rank3", {2, 3, 36}, 17},
                                         {"vector", {20}, 6},
                                         {"long", {3, 1030}, 20},
                                         {"empty", {0, 8}, 4}}) {
    const Shape shape = x;
    const int64_t o = outputs;
    for (DType y : {DType::kU8, DType::kI8, DType::kF32}) {
      for (bool reduced : {false, true}) {
        cases.push_back({.name = cat("quantized_linear_", name, "_", y, reduced ? "_reduced" : ""), .build = [=](CaseInputs& in) {
                           QuantizedLinearAttrs a;
                           const DType dtype = y == DType::kI8 ? DType::kI8 : DType::kU8;
                           const int64_t inputs = shape[-1], weight_high = reduced ? 64 : 127;
                           a.saturation = reduced ? Saturation::kReduced : Saturation::kExact;
                           a.activation = reduced ? Activation::kRelu : Activation::kNone;
                           a.set_input(params(0.02, lowest(dtype) + 77, dtype));
                           const double step =
                               0.02 * 0.01 * std::sqrt(static_cast<double>(inputs)) * 85 * static_cast<double>(weight_high) / 40;
                           if (y != DType::kF32) a.set_output(params(step, lowest(y) + 99, y));
                           const Value q = in.quantized(dtype, shape, lowest(dtype), lowest(dtype) + 255);
                           const Value weight =
                               in.quantized(DType::kI8, {o, inputs}, reduced ? -64 : -128, weight_high, ValueRole::kParameter);
                           const Value scale = in.f32({o}, {.low = 0.004, .high = 0.016});
                           quantized_linear(q, weight, scale, reduced ? in.f32({o}) : Value(), a);
                         }});
      }
    }
    for (bool reduced : {false, true}) {
      cases.push_back({.name = cat("dynamic_quantized_linear_", name, reduced ? "_reduced" : ""), .build = [=](CaseInputs& in) {
                         DynamicQuantizedLinearAttrs a;
                         a.saturation = reduced ? Saturation::kReduced : Saturation::kExact;
                         a.activation = reduced ? Activation::kTanh : Activation::kNone;
                         const Value real = in.f32(shape, {.low = -3, .high = 5}),
                                     weight = in.quantized(DType::kI8, {o, shape[-1]}, -127, 127, ValueRole::kParameter);
                         const Value scale = in.f32({o}, {.low = 0.0004, .high = 0.0016});
                         dynamic_quantized_linear(real, weight, scale, reduced ? Value() : in.f32({o}), a);
                       }});
    }
  }
  // (3-1) * 10 + (1-1) * 20 = 20 -> 20 * 0.5 * 0.1 + 0.5 = 1.5 -> / 0.5 = 3, + 100
  cases.push_back({.name = "quantized_linear_hand",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedLinearAttrs a;
                         a.set_input(params(0.5, 1, DType::kU8));
                         a.set_output(params(0.5, 100, DType::kU8));
                         quantized_linear(in.values({1, 2}, {3, 1}, DType::kU8), in.values({1, 2}, {10, 20}, DType::kI8),
                                          in.values({1}, {0.1}, DType::kF32), in.values({1}, {0.5}, DType::kF32), a);
                       },
                   .expected = {103}});
  // Range -1..4.1 of uint8: scale 0.02, zero point 50: integers 255, 0, 100; weights 1, 2, 3: 205 - 100 + 150 = 255 -> 5.1
  cases.push_back({.name = "dynamic_quantized_linear_hand",
                   .build =
                       [](CaseInputs& in) {
                         dynamic_quantized_linear(in.values({1, 3}, {4.1, -1, 1}, DType::kF32), in.values({1, 3}, {1, 2, 3}, DType::kI8),
                                                  in.values({1}, {1}, DType::kF32), {});
                       },
                   .expected = {5.1}});
  // All values are equal; the range includes 0 nevertheless.
  cases.push_back({.name = "dynamic_quantized_linear_constant_hand",
                   .build =
                       [](CaseInputs& in) {
                         dynamic_quantized_linear(in.values({1, 2}, {2, 2}, DType::kF32), in.values({1, 2}, {3, 4}, DType::kI8),
                                                  in.values({1}, {0.5}, DType::kF32), {});
                       },
                   .expected = {7}});
}

void add_element_wise_cases(std::vector<OpCase>& cases) {
  struct Pair {
    std::string name;
    Shape a, b;
  };
  for (const Pair& s : {Pair{"image", {2, 19, 5, 7}, {2, 19, 5, 7}}, Pair{"gate", {2, 35, 5, 3}, {2, 35, 1, 1}},
                        Pair{"gate_one_pixel", {3, 8, 1, 1}, {3, 8, 1, 1}}, Pair{"vector", {3, 37}, {3, 37}},
                        Pair{"empty", {0, 4, 2, 2}, {0, 4, 2, 2}}, Pair{"large", {2, 16, 33, 31}, {2, 16, 33, 31}}}) {
    for (DType y : {DType::kU8, DType::kI8, DType::kF32}) {
      for (bool multiply : {false, true}) {
        for (bool powers : {false, true}) {
          cases.push_back(
              {.name = cat(multiply ? "quantized_mul_" : "quantized_add_", s.name, "_", y, powers ? "_ties" : ""),
               .build =
                   [=](CaseInputs& in) {
                     QuantizedBinaryAttrs attrs;
                     const DType b_dtype = y == DType::kI8 ? DType::kI8 : DType::kU8;
                     attrs.set_inputs(params(powers ? 0.25 : 0.031, 120, DType::kU8),
                                      params(powers ? 0.125 : 0.017, lowest(b_dtype) + 55, b_dtype));
                     if (y != DType::kF32)
                       attrs.set_output(params(powers ? (multiply ? 1 : 0.5) : (multiply ? 0.07 : 0.041), lowest(y) + 80, y));
                     attrs.activation = y == DType::kI8 ? Activation::kNone : powers ? Activation::kRelu : Activation::kHardswish;
                     const Value a = in.quantized(DType::kU8, s.a, 0, 255),
                                 b = in.quantized(b_dtype, s.b, lowest(b_dtype), lowest(b_dtype) + 255);
                     multiply ? quantized_mul(a, b, attrs) : quantized_add(a, b, attrs);
                   },
               .exact_ties = powers});
        }
      }
    }
  }
  const auto hand = [](CaseInputs& in, bool multiply) {
    QuantizedBinaryAttrs attrs;
    attrs.set_inputs(params(0.5, 10, DType::kU8), params(0.25, 0, DType::kI8));
    attrs.set_output(params(1, 3, DType::kI8));
    const Value a = in.values({3}, {12, 11, 255}, DType::kU8), b = in.values({3}, {6, 8, 127}, DType::kI8);
    multiply ? quantized_mul(a, b, attrs) : quantized_add(a, b, attrs);
  };
  // 1 + 1.5 = 2.5 -> 2; 0.5 + 2 = 2.5 -> 2; 122.5 + 31.75 -> 127
  cases.push_back(
      {.name = "quantized_add_hand", .build = [=](CaseInputs& in) { hand(in, false); }, .expected = {5, 5, 127}, .exact_ties = true});
  // 1 * 1.5 = 1.5 -> 2; 0.5 * 2 = 1; 122.5 * 31.75 -> 127
  cases.push_back(
      {.name = "quantized_mul_hand", .build = [=](CaseInputs& in) { hand(in, true); }, .expected = {5, 4, 127}, .exact_ties = true});

  for (int64_t axis : {1, 2, 3}) {
    for (DType y : {DType::kU8, DType::kI8, DType::kF32}) {
      cases.push_back({.name = cat("quantized_concat_axis_", axis, "_", y), .build = [=](CaseInputs& in) {
                         Shape a{2, 19, 5, 3}, b = a, c = a;
                         b[static_cast<int>(axis)] = 1;
                         c[static_cast<int>(axis)] = 16;
                         QuantizedConcatAttrs attrs;
                         attrs.axis = axis;
                         attrs.add_input(params(0.03, 10, DType::kU8));
                         attrs.add_input(params(0.05, -5, DType::kI8));
                         attrs.add_input(params(0.04, 200, DType::kU8));
                         if (y != DType::kF32)
                           attrs.set_output(params(0.04, lowest(y) + 200, y));  // that of the last input where u8: copied
                         quantized_concat(std::vector<Value>{in.quantized(DType::kU8, a, 0, 255), in.quantized(DType::kI8, b, -128, 127),
                                                             in.quantized(DType::kU8, c, 0, 255)},
                                          attrs);
                       }});
    }
  }
  // 0.5 * (4-2) = 1 -> 10 + 1; (3-0) * 2 = 6 -> 16
  cases.push_back({.name = "quantized_concat_hand",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedConcatAttrs attrs;
                         attrs.axis = 0;
                         attrs.add_input(params(0.5, 2, DType::kU8));
                         attrs.add_input(params(2, 0, DType::kI8));
                         attrs.set_output(params(1, 10, DType::kU8));
                         quantized_concat(std::vector<Value>{in.values({2}, {4, 2}, DType::kU8), in.values({1}, {3}, DType::kI8)}, attrs);
                       },
                   .expected = {11, 10, 16}});
}

void add_pool_cases(std::vector<OpCase>& cases) {
  struct Window {
    std::string name;
    Shape x;
    std::vector<int64_t> kernel, stride, padding;
    bool ceil = false, count_pad = true;
  };
  for (const Window& w :
       {Window{"plain", {2, 19, 6, 8}, {2}, {}, {0}}, Window{"stem", {1, 5, 9, 7}, {3}, {2}, {1}},
        Window{"uneven", {2, 3, 7, 9}, {3, 2}, {2, 3}, {1, 0}}, Window{"ceil_padding", {1, 33, 6, 5}, {3}, {2}, {1}, true},
        Window{"ceil_padding_valid", {1, 3, 6, 5}, {3}, {2}, {1}, true, false},
        Window{"padding_valid", {1, 17, 5, 5}, {3}, {1}, {1}, false, false}, Window{"empty_batch", {0, 3, 6, 8}, {2}, {}, {0}}}) {
    for (DType dtype : {DType::kU8, DType::kI8}) {
      for (DType y : {dtype, DType::kF32}) {
        cases.push_back(
            {.name = cat("quantized_avg_pool2d_", w.name, "_", dtype, y == DType::kF32 ? "_f32" : ""), .build = [=](CaseInputs& in) {
               QuantizedAvgPool2dAttrs a;
               a.kernel_size = w.kernel;
               a.stride = w.stride;
               a.padding = w.padding;
               a.ceil_mode = w.ceil;
               a.count_include_pad = w.count_pad;
               a.set_input(params(0.021, lowest(dtype) + 90, dtype));
               if (y != DType::kF32) a.set_output(params(0.017, lowest(y) + 70, y));
               quantized_avg_pool2d(in.quantized(dtype, w.x, lowest(dtype), lowest(dtype) + 255), a);
             }});
      }
    }
  }
  for (const auto& [name, x, size] : {std::tuple<std::string, Shape, std::vector<int64_t>>{"global", {2, 35, 7, 7}, {1}},
                                      {"uneven", {1, 19, 7, 5}, {3, 2}},
                                      {"grown", {2, 3, 2, 2}, {3, 5}},
                                      {"global_large", {1, 16, 56, 61}, {1}}}) {
    const Shape shape = x;
    const std::vector<int64_t> output_size = size;
    for (DType dtype : {DType::kU8, DType::kI8}) {
      for (DType y : {dtype, DType::kF32}) {
        cases.push_back(
            {.name = cat("quantized_adaptive_avg_pool2d_", name, "_", dtype, y == DType::kF32 ? "_f32" : ""), .build = [=](CaseInputs& in) {
               QuantizedAdaptiveAvgPool2dAttrs a;
               a.output_size = output_size;
               a.set_input(params(0.021, lowest(dtype) + 90, dtype));
               if (y != DType::kF32) a.set_output(params(0.004, lowest(y) + 70, y));
               quantized_adaptive_avg_pool2d(in.quantized(dtype, shape, lowest(dtype), lowest(dtype) + 255), a);
             }});
      }
    }
  }
  // (1 + 2 + 3 + 5 - 4 * 1) * 0.5 / 4 = 0.875 -> / 0.25 = 3.5 -> 4, + 20
  cases.push_back({.name = "quantized_avg_pool2d_hand",
                   .build =
                       [](CaseInputs& in) {
                         QuantizedAvgPool2dAttrs a;
                         a.set_input(params(0.5, 1, DType::kU8));
                         a.set_output(params(0.25, 20, DType::kU8));
                         quantized_avg_pool2d(in.values({1, 1, 2, 2}, {1, 2, 3, 5}, DType::kU8), a);
                       },
                   .expected = {24},
                   .exact_ties = true});
}

}  // namespace

std::vector<OpCase> quantized_cases() {
  std::vector<OpCase> cases;
  add_conv_cases(cases);
  add_conv_hand_cases(cases);
  add_winograd_cases(cases);
  add_linear_cases(cases);
  add_element_wise_cases(cases);
  add_pool_cases(cases);
  return cases;
}

}  // namespace galley::test
