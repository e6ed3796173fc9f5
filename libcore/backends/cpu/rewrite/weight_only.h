#pragma once
// Linear layers whose weights are stored as integers (quantize.method=weight_only). use_stored_weights (rewrites.h) makes the operator.

#include "libcore/ops/matmul.h"
#include "libcore/ops/quantize.h"

namespace galley {

struct WeightOnlyLinearAttrs : OptionsOf<WeightOnlyLinearAttrs> {
  int64_t bits = 8;        // as DequantizeWeightAttrs
  int64_t group_size = 0;  // as DequantizeWeightAttrs
  Activation activation = Activation::kNone;
  bool rounded = false;  // x is rounded: each kRoundedGroup values of a row to integers of at most 127, with a scale
  void options(OptionVisitor& v) override;
};

/// Values of x that share a scale, where it is rounded: scale = largest |x| / 127, code = x / scale, rounded to the nearest even.
inline constexpr int64_t kRoundedGroup = 32;

const OpDef& weight_only_linear_op();
/// Is there an integer form of the product with these weights: no zero points, whole groups of 32, 64, or a multiple of 128?
bool can_round(const WeightOnlyLinearAttrs& attrs, bool zero_point);

/// x f32 [...,I], weight i8 [O,I] (bits 4: u8 [O,ceil(I/2)]), scale f32 [O] or [O,G], zero_point i8 of scale's shape or absent, bias f32
/// [O] or absent -> f32 [...,O] = linear(x, dequantize_weight(weight, scale, zero_point), bias).
Value weight_only_linear(Value x, Value weight, Value scale, Value zero_point, Value bias, const WeightOnlyLinearAttrs& attrs);

}  // namespace galley
