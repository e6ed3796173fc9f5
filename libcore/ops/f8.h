#pragma once
// Layers whose operands are f8_e4m3 (tensor/dtype.h): weights are stored in it with an f32 scale for each output channel, activations are
// rounded to it with one scale, known before the run. Results are real. What lies between layers stays in float.

#include "libcore/ops/conv.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/matmul.h"

namespace galley {

struct RoundToF8Attrs : OptionsOf<RoundToF8Attrs> {
  double scale = 1;
  void options(OptionVisitor& v) override;
};
struct F8LinearAttrs : OptionsOf<F8LinearAttrs> {
  double input_scale = 1;
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};
struct F8Conv2dAttrs : OptionsOf<F8Conv2dAttrs>, Conv2dWindow {
  double input_scale = 1;
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};

const OpDef& round_to_f8_op();
const OpDef& f8_linear_op();
const OpDef& f8_conv2d_op();

/// x of a floating dtype -> scale * rounded_to_f8(x / scale) in the same dtype; the quotient is rounded to float32. `scale` is a float32
/// value.
Value round_to_f8(Value x, double scale);
/// x f32, bf16 or f16 [...,I], weight f8_e4m3 [O,I], weight_scale f32 [O], bias f32 [O] or absent -> [...,O] in x's dtype:
/// activation(sum(q * weight) * (input_scale * weight_scale[o]) + bias[o]), q = rounded_to_f8(x / input_scale). Kernels sum in float32.
Value f8_linear(Value x, Value weight, Value weight_scale, Value bias, const F8LinearAttrs& attrs);
/// x [N,C,H,W], weight f8_e4m3 [O,C/groups,kh,kw], residual of the shape and dtype of the result or absent: as f8_linear, with the residual
/// added before the activation.
Value f8_conv2d(Value x, Value weight, Value weight_scale, Value bias, const F8Conv2dAttrs& attrs, Value residual = {});

/// OpDef::f8_form of linear and conv2d.
void linear_on_f8(IntegerBuilder& builder);
void conv2d_on_f8(IntegerBuilder& builder);

}  // namespace galley
