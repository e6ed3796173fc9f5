// Cases of quantize, dequantize, lookup and weights stored as integers; and of operators that move elements, with 8-bit integers.

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

const QuantParams kHalves{0.5, 10, DType::kU8, 0, 255};
const QuantParams kSigned{0.25, -3, DType::kI8, -128, 127};
const QuantParams kReduced{static_cast<double>(0.07f), 30, DType::kU8, 0, 127};

LookupAttrs squares() {
  LookupAttrs attrs;
  for (int64_t i = 0; i < 256; ++i) attrs.table.push_back(i * i % 251);
  return attrs;
}

using Build = std::function<void(CaseInputs&)>;

/// Adds a case, with its expected values if there are any.
auto adder(std::vector<OpCase>& cases) {
  return [&cases](std::string name, Build build, std::vector<double> expected = {}) {
    cases.push_back({.name = std::move(name), .build = std::move(build), .expected = std::move(expected)});
  };
}

void add_values(std::vector<OpCase>& cases) {
  const auto add = adder(cases);
  // x / 0.5: -2.5 -> -2, 0.5 -> 0, 1.5 -> 2, 2.5 -> 2 (halves to even), 3.02 -> 3; then + 10, clamped.
  add("quantize_hand",
      [](CaseInputs& in) { quantize(in.values({8}, {-1.25, 0.25, 0.75, 1.25, 1.51, 0, 999, -999}, DType::kF32), kHalves); },
      {8, 10, 12, 12, 13, 10, 255, 0});
  add("quantize_signed_hand", [](CaseInputs& in) { quantize(in.values({5}, {0, -0.375, 0.125, 100, -100}, DType::kF32), kSigned); },
      {-3, -5, -3, 127, -128});
  for (const QuantParams& p : {kHalves, kSigned, kReduced}) {
    const std::string name = cat(p.dtype, "_", p.qmax);
    const DType dtype = p.dtype;
    const int64_t low = dtype == DType::kU8 ? 0 : -128;
    for (const Shape& shape : {Shape{2, 19, 5, 7}, Shape{3, 33}, Shape{}, Shape{0, 3, 2, 2}}) {
      const std::string full = cat(name, "_rank", shape.rank(), shape.elements() == 0 ? "_empty" : "");
      add("quantize_" + full, [=](CaseInputs& in) { quantize(in.f32(shape, {.low = -12, .high = 40}), p); });
      add("dequantize_" + full, [=](CaseInputs& in) { dequantize(in.quantized(dtype, shape, low, low + 255), p); });
      add("lookup_" + full, [=](CaseInputs& in) { lookup(in.quantized(dtype, shape, low, low + 255), squares()); });
    }
  }
  add("quantize_large", [](CaseInputs& in) { quantize(in.f32({3, 7, 41, 43}, {.low = -12, .high = 40}), kReduced); });
  add("dequantize_large", [](CaseInputs& in) { dequantize(in.quantized(DType::kI8, {3, 7, 41, 43}, -128, 127), kSigned); });
  add("lookup_large", [](CaseInputs& in) { lookup(in.quantized(DType::kU8, {3, 7, 41, 43}, 0, 255), squares()); });
  add("dequantize_hand", [](CaseInputs& in) { dequantize(in.values({4}, {0, 10, 11, 255}, DType::kU8), kHalves); }, {-5, 0, 0.5, 122.5});
  add("lookup_hand",
      [](CaseInputs& in) {
        LookupAttrs attrs;
        attrs.dtype = DType::kI8;
        for (int64_t i = 0; i < 256; ++i) attrs.table.push_back(127 - i);
        lookup(in.values({4}, {-128, -1, 0, 127}, DType::kI8), attrs);
      },
      {127, 0, -1, -128});
  // (q - 10) * 0.5 / 0.25 - 3: 0 -> -23, 10 -> -3, 75 -> 127, 76 -> clamped
  add("requantize_hand", [](CaseInputs& in) { requantize(in.values({4}, {0, 10, 75, 76}, DType::kU8), kHalves, kSigned); },
      {-23, -3, 127, 127});
}

void add_weights(std::vector<OpCase>& cases) {
  const auto add = adder(cases);
  add("dequantize_weight_hand",
      [](CaseInputs& in) {
        dequantize_weight(in.values({2, 3}, {1, -2, 127, -128, 0, 4}, DType::kI8), in.values({2}, {0.5, 2}, DType::kF32), {});
      },
      {0.5, -1, 63.5, -256, 0, 8});
  DequantizeWeightAttrs groups;
  groups.group_size = 2;
  add("dequantize_weight_groups_hand",
      [=](CaseInputs& in) {
        dequantize_weight(in.values({1, 5}, {1, 2, 3, 4, 5}, DType::kI8), in.values({1, 3}, {1, 10, 100}, DType::kF32),
                          in.values({1, 3}, {1, 0, -1}, DType::kI8), groups);
      },
      {0, 1, 30, 40, 600});
  DequantizeWeightAttrs packed;
  packed.bits = 4;
  packed.shape = {2, 3};
  // Low half first, signed: 0x71 = 1, 7; 0x0F = -1, then nothing; 0x98 = -8, -7; 0x02 = 2.
  add("dequantize_weight_int4_hand",
      [=](CaseInputs& in) {
        dequantize_weight(in.values({2, 2}, {0x71, 0x0F, 0x98, 0x02}, DType::kU8), in.values({2}, {1, 0.5}, DType::kF32), {}, packed);
      },
      {1, 7, -1, -4, -3.5, 1});
  add("dequantize_weight_conv", [](CaseInputs& in) {
    dequantize_weight(in.quantized(DType::kI8, {6, 5, 3, 3}, -127, 127, ValueRole::kParameter), in.f32({6}, {.low = 0.01, .high = 0.1}),
                      {});
  });
  packed.group_size = 8;
  packed.shape = {7, 21};
  add("dequantize_weight_int4", [=](CaseInputs& in) {
    dequantize_weight(in.quantized(DType::kU8, {7, 11}, 0, 255, ValueRole::kParameter), in.f32({7, 3}, {.low = 0.01, .high = 0.1}),
                      in.quantized(DType::kI8, {7, 3}, -8, 7), packed);
  });
}

void add_moves(std::vector<OpCase>& cases) {
  const auto add = adder(cases);
  // Operators that move elements accept integers unchanged.
  const Shape image{2, 19, 6, 7};
  for (DType dtype : {DType::kU8, DType::kI8}) {
    const int64_t low = dtype == DType::kU8 ? 0 : -128, high = low + 255;
    const auto on_integers = [&](const std::string& name, std::function<void(Value)> capture) {
      add(cat(name, "_", dtype), [=](CaseInputs& in) { capture(in.quantized(dtype, image, low, high)); });
    };
    on_integers("max_pool2d", [](Value x) {
      MaxPool2dAttrs a;
      a.kernel_size = {3};
      a.stride = {2};
      a.padding = {1};
      max_pool2d(x, a);
    });
    on_integers("adaptive_max_pool2d", [](Value x) {
      AdaptiveMaxPool2dAttrs a;
      a.output_size = {3, 2};
      adaptive_max_pool2d(x, a);
    });
    on_integers("resize_nearest", [](Value x) {
      ResizeAttrs a;
      a.size = {9, 5};
      a.mode = ResizeMode::kNearest;
      resize(x, a);
    });
    on_integers("pad", [](Value x) { pad(x, {0, 0, 0, 0, 1, 2, 3, 0}, 7); });
    on_integers("concat", [](Value x) { concat({x, x}, 1); });
    on_integers("slice", [](Value x) { slice(x, 1, 2, 9); });
    on_integers("permute", [](Value x) { permute(x, {0, 2, 3, 1}); });
    on_integers("reshape", [](Value x) { flatten(x); });
    on_integers("reorder", [](Value x) { reorder(x, MemoryFormat::channels_last()); });
    on_integers("amax", [](Value x) {
      ReduceAttrs a;
      a.axes = {2, 3};
      a.keepdim = true;
      amax(x, a);
    });
    add(cat("broadcast_to_", dtype),
        [=](CaseInputs& in) { broadcast_to(in.quantized(dtype, {2, 5, 1, 1}, low, high), Shape{2, 5, 3, 4}); });
  }
}

/// A weight of f8_e4m3 with random scales. Integers up to 448 are rounded to codes.
struct F8Weight {
  Value weight, scale;
};
F8Weight f8_weight(CaseInputs& in, const Shape& shape) {
  return {in.quantized(DType::kF8E4M3, shape, -448, 448, ValueRole::kParameter), in.f32({shape[0]}, {.low = 0.0001, .high = 0.001})};
}

struct F8ConvCase {
  std::string name;
  Shape x, weight;
  std::vector<int64_t> stride = {1}, padding = {0}, dilation = {1};
  int64_t groups = 1;
  bool bias = false, residual = false;
  Activation activation = Activation::kNone;
};

/// Products of f8. GPUs of the Hopper generation sum about 13 bits of each product: 2^-10 of the largest result. A wrong channel, scale or
/// code changes results by a hundredth and more.
constexpr double kF8Tolerance = 0x1p-10;

void add_f8(std::vector<OpCase>& cases) {
  const auto add = [&](std::string name, Build build, std::vector<double> expected = {}) {
    const bool hand = !expected.empty();
    cases.push_back({.name = std::move(name),
                     .build = std::move(build),
                     .expected = std::move(expected),
                     .kernel_tolerance = hand ? 2e-5 : kF8Tolerance,
                     .forward_only = true,
                     .low_precision = !hand});
  };
  // x / 2: 8.5 -> 8, 9.5 -> 10 (codes are 8, 9, 10; halves to even), -8.55 -> -9, 2^-8 is a code, 1000 -> 448.
  add("round_to_f8_hand", [](CaseInputs& in) { round_to_f8(in.values({6}, {17, 19, -17.1, 0.0078125, 2000, 0}, DType::kF32), 2); },
      {16, 20, -18, 0.0078125, 896, 0});
  for (const Shape& shape : {Shape{2, 19, 5, 7}, Shape{3, 33}, Shape{0, 3}})
    add(cat("round_to_f8_rank", shape.rank(), shape.elements() == 0 ? "_empty" : ""),
        [=](CaseInputs& in) { round_to_f8(in.real(shape, {.low = -3, .high = 12}), static_cast<double>(0.011f)); });
  // 0x38 is 1, 0x7e 448, 0x81 -2^-9.
  add("dequantize_weight_f8_hand",
      [](CaseInputs& in) {
        dequantize_weight(in.values({2, 2}, {1, 448, -0x1p-9, 0}, DType::kF8E4M3), in.values({2}, {0.5, 4}, DType::kF32), {});
      },
      {0.5, 224, -0x1p-7, 0});
  add("dequantize_weight_f8", [](CaseInputs& in) {
    const F8Weight w = f8_weight(in, {7, 3, 5, 3});
    dequantize_weight(w.weight, w.scale, {});
  });
  // x / 0.5 = 2, 17 -> 16: 2 * 1 + 16 * 3 = 50, times 0.5 * 0.25, plus 1; the other output is negative before relu.
  F8LinearAttrs hand;
  hand.input_scale = 0.5;
  hand.activation = Activation::kRelu;
  add("f8_linear_hand",
      [=](CaseInputs& in) {
        f8_linear(in.values({1, 2}, {1, 8.5}, DType::kF32), in.values({2, 2}, {1, 3, -1, 0}, DType::kF8E4M3),
                  in.values({2}, {0.25, 1}, DType::kF32), in.values({2}, {1, 0.5}, DType::kF32), hand);
      },
      {7.25, 0});
  for (const auto& [rows, inputs, outputs] : std::vector<std::array<int64_t, 3>>{{3, 37, 19}, {5, 48, 32}, {1, 16, 5}}) {
    add(cat("f8_linear_", rows, "_", inputs, "_", outputs), [=, rows = rows, inputs = inputs, outputs = outputs](CaseInputs& in) {
      F8LinearAttrs attrs;
      attrs.input_scale = static_cast<double>(0.0023f);
      attrs.activation = rows == 3 ? Activation::kGelu : Activation::kNone;
      const F8Weight w = f8_weight(in, {outputs, inputs});
      f8_linear(in.real({2, rows, inputs}), w.weight, w.scale, rows == 5 ? Value() : in.f32({outputs}), attrs);
    });
  }
  for (const F8ConvCase& c :
       std::vector<F8ConvCase>{{"pointwise", {2, 16, 3, 5}, {16, 16, 1, 1}},
                               {"windows", {2, 5, 6, 7}, {9, 5, 3, 3}, {2, 1}, {1, 2}, {1, 2}, 1, true, false, Activation::kSilu},
                               {"residual", {3, 6, 5, 4}, {18, 6, 3, 1}, {1}, {1, 0}, {1}, 1, true, true, Activation::kRelu},
                               {"groups", {2, 6, 5, 5}, {6, 1, 3, 3}, {1}, {1}, {1}, 6, true}}) {
    add("f8_conv2d_" + c.name, [=](CaseInputs& in) {
      F8Conv2dAttrs attrs;
      attrs.stride = c.stride;
      attrs.padding = c.padding;
      attrs.dilation = c.dilation;
      attrs.groups = c.groups;
      attrs.activation = c.activation;
      attrs.input_scale = static_cast<double>(0.0023f);
      const F8Weight w = f8_weight(in, c.weight);
      const Value x = in.real(c.x);
      const Value residual = c.residual ? in.real(conv_shape(attrs, c.x, c.weight)) : Value();
      f8_conv2d(x, w.weight, w.scale, c.bias ? in.f32({c.weight[0]}) : Value(), attrs, residual);
    });
  }
}

}  // namespace

std::vector<OpCase> quantize_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_values, add_weights, add_moves, add_f8}) add(cases);
  return cases;
}

}  // namespace galley::test
