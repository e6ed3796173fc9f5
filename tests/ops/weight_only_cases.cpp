// Cases of linear layers with stored integer weights: tiles of rows and columns, rests of vectors and groups, odd depths of 4 bits.

#include "libcore/backends/weight_only.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct Layer {
  std::string name;
  Shape rows;  // leading dimensions of x
  int64_t depth, columns, bits, group;
  bool zero_point = false, bias = false;
  Activation activation = Activation::kNone;
  bool rounded = false;
};

void build(CaseInputs& in, const Layer& layer) {
  WeightOnlyLinearAttrs attrs;
  attrs.bits = layer.bits;
  attrs.group_size = layer.group;
  attrs.activation = layer.activation;
  attrs.rounded = layer.rounded;
  Shape x = layer.rows;
  x.push_back(layer.depth);
  Shape scales{layer.columns};
  if (layer.group > 0) scales.push_back((layer.depth + layer.group - 1) / layer.group);
  const Value image = in.f32(x);
  const Value weight = layer.bits == 8 ? in.quantized(DType::kI8, {layer.columns, layer.depth}, -127, 127, ValueRole::kParameter)
                                       : in.quantized(DType::kU8, {layer.columns, (layer.depth + 1) / 2}, 0, 255, ValueRole::kParameter);
  const Value scale = in.f32(scales, {.low = 0.01, .high = 0.1});
  const Value zero = layer.zero_point ? in.quantized(DType::kI8, scales, -8, 7) : Value();
  weight_only_linear(image, weight, scale, zero, layer.bias ? in.f32({layer.columns}) : Value(), attrs);
}

}  // namespace

std::vector<OpCase> weight_only_cases() {
  std::vector<OpCase> cases;
  WeightOnlyLinearAttrs hand;
  hand.bits = 4;
  hand.group_size = 2;
  // Low half first, signed: 0x71 = 1, 7; 0x0F = -1, then nothing. Scales 1 and 10, zero points 0 and -1.
  cases.push_back({.name = "weight_only_linear_hand",
                   .build =
                       [=](CaseInputs& in) {
                         weight_only_linear(in.values({1, 3}, {1, 2, 3}, DType::kF32), in.values({1, 2}, {0x71, 0x0F}, DType::kU8),
                                            in.values({1, 2}, {1, 10}, DType::kF32), in.values({1, 2}, {0, -1}, DType::kI8),
                                            in.values({1}, {0.5}, DType::kF32), hand);
                       },
                   .expected = {15.5},
                   .forward_only = true});
  // x of 127, 1.4 and -63.5 becomes 127, 1 and -64 with scale 1: half to even. Weights 1, 7, -1.
  WeightOnlyLinearAttrs rounded;
  rounded.bits = 4;
  rounded.group_size = 32;
  rounded.rounded = true;
  cases.push_back({.name = "weight_only_linear_hand_rounded",
                   .build =
                       [=](CaseInputs& in) {
                         weight_only_linear(in.values({1, 3}, {127, 1.4, -63.5}, DType::kF32), in.values({1, 2}, {0x71, 0x0F}, DType::kU8),
                                            in.values({1, 1}, {0.5}, DType::kF32), {}, {}, rounded);
                       },
                   .expected = {0.5 * (127 + 7 + 64)},
                   .forward_only = true});
  for (const Layer& layer : std::vector<Layer>{
           {"one_row", {1}, 64, 40, 8, 0},
           {"one_row_rest", {}, 37, 19, 8, 0, true, true},
           {"rows", {3}, 48, 17, 8, 0, false, true, Activation::kRelu},
           {"most_rows", {2, 8}, 33, 21, 8, 0, true},
           {"groups", {1}, 96, 24, 8, 32},
           {"groups_rest", {5}, 70, 11, 8, 24, true, true},
           {"int4", {1}, 64, 40, 4, 0},
           {"int4_odd", {2}, 43, 13, 4, 0, false, true},
           {"int4_groups", {1}, 128, 33, 4, 32},
           {"int4_groups_rest", {7}, 77, 10, 4, 12, true, true, Activation::kGelu},
           {"int4_small_groups", {1}, 40, 9, 4, 2, true},
           {"many_rows", {3, 9}, 70, 41, 8, 0, true, true, Activation::kRelu},
           {"many_rows_groups", {40}, 96, 130, 8, 32},
           {"int4_many_rows", {17}, 77, 33, 4, 12, true, true},
           {"int4_many_rows_groups", {33}, 160, 70, 4, 32, false, false, Activation::kGelu},
           {"int4_many_rows_odd", {20}, 43, 16, 4, 0, false, true},
           {"rounded", {1}, 256, 33, 4, 32, false, true, Activation::kNone, true},
           {"rounded_rows", {3, 2}, 192, 18, 4, 64, false, false, Activation::kGelu, true},
           {"rounded_rest", {2}, 333, 13, 4, 32, false, true, Activation::kNone, true},
           {"rounded_large_groups", {1}, 700, 9, 4, 256, false, false, Activation::kNone, true},
           {"rounded_one_scale", {1}, 170, 11, 4, 0, false, false, Activation::kNone, true},
           {"rounded_many_rows", {6, 4}, 96, 64, 8, 0, false, true, Activation::kRelu, true},
           {"rounded_many_rows_rest", {23}, 77, 41, 8, 0, false, true, Activation::kNone, true},
           {"rounded_many_rows_groups", {19}, 200, 70, 8, 64, false, false, Activation::kGelu, true},
           {"rounded_many_rows_int4", {27}, 256, 33, 4, 32, false, true, Activation::kNone, true},
           {"rounded_many_rows_int4_odd", {17}, 333, 18, 4, 128, false, true, Activation::kNone, true},
           {"rounded_many_rows_int4_one_scale", {20}, 45, 97, 4, 0, false, false, Activation::kNone, true},
           {"rounded_short", {5}, 5, 3, 4, 32, false, false, Activation::kNone, true},
       }) {
    cases.push_back({.name = "weight_only_linear_" + layer.name, .build = [=](CaseInputs& in) { build(in, layer); }, .forward_only = true});
  }
  return cases;
}

}  // namespace galley::test
