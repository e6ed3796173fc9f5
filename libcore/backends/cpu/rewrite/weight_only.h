#pragma once
// Linear layers whose weights are stored as integers (quantize.method=weight_only). use_stored_weights (rewrites.h) makes the operator.

#include "libcore/ops/matmul.h"
#include "libcore/ops/quantize.h"

namespace galley {

struct WeightOnlyLinearAttrs : OptionsOf<WeightOnlyLinearAttrs> {
  int64_t bits = 8;        // as DequantizeWeightAttrs
  int64_t group_size = 0;  // as DequantizeWeightAttrs
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};

const OpDef& weight_only_linear_op();

/// x f32 [...,I], weight i8 [O,I] (bits 4: u8 [O,ceil(I/2)]), scale f32 [O] or [O,G], zero_point i8 of scale's shape or absent, bias f32
/// [O] or absent -> f32 [...,O] = linear(x, dequantize_weight(weight, scale, zero_point), bias).
Value weight_only_linear(Value x, Value weight, Value scale, Value zero_point, Value bias, const WeightOnlyLinearAttrs& attrs);

}  // namespace galley
