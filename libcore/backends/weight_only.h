#pragma once
// Linear layers whose weights are stored as integers (quantize.method=weight_only), for the rewrites of back ends.

#include "libcore/ops/matmul.h"
#include "libcore/ops/quantize.h"
#include "libcore/passes/target.h"

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

/// Registers the operator, once.
void ensure_weight_only_operator();

/// kBeforeLayout: linear layers of few rows read weights that are stored as integers in that form (weight_only_linear), where nothing else
/// reads the dequantized weight. Other layers read a float copy, which an inference makes once. `round_for_int4`, `round_for_int8`:
/// activations are rounded to 8 bits where the product with weights of that type has an integer form (can_round), but not in
/// training.
PassReport use_stored_weights(Graph& graph, const Target& target, bool round_for_int4, bool round_for_int8);

}  // namespace galley
