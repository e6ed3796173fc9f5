#pragma once
// Recurrent layers with 8-bit weights, whose state is quantized at each step by its range: the hidden-to-hidden part of an LSTM, GRU or
// plain RNN under dynamic quantization. A dynamic_quantized_linear before it computes the input part of all steps.

#include "libcore/ops/quantized.h"
#include "libcore/ops/recurrent.h"

namespace galley {

struct DynamicQuantizedRecurrentAttrs : OptionsOf<DynamicQuantizedRecurrentAttrs> {
  bool reverse = false;
  Saturation saturation = Saturation::kExact;  // reduced: the state is quantized to 0..127
  void options(OptionVisitor& v) override;
};
struct DynamicQuantizedRnnAttrs : OptionsOf<DynamicQuantizedRnnAttrs> {
  Nonlinearity nonlinearity = Nonlinearity::kTanh;
  bool reverse = false;
  Saturation saturation = Saturation::kExact;
  void options(OptionVisitor& v) override;
};

const OpDef& dynamic_quantized_lstm_op();
const OpDef& dynamic_quantized_gru_op();
const OpDef& dynamic_quantized_rnn_op();

/// One layer and direction. x f32 [N,T,G H]: W_ih x + b_ih of every step; weight i8 [G H,H] with weight_scale f32 [G H] and bias f32 [G H]
/// or absent: W_hh and b_hh; states f32 [N,H] or absent (zeros). Each step quantizes the h of the whole batch as
/// dynamic_quantized_linear quantizes its input and computes an exact integer product; all else is as in ops/recurrent.h. This is what
/// torch.ao.nn.quantized.dynamic computes (reduced, with one scale per weight).
struct QuantizedLstm {
  Value y, h, c;  // [N,T,H]; the last step's [N,H]
};
QuantizedLstm dynamic_quantized_lstm(Value x, Value weight, Value weight_scale, Value bias, Value h0 = {}, Value c0 = {},
                                     const DynamicQuantizedRecurrentAttrs& attrs = {});
struct QuantizedRecurrent {
  Value y, h;
};
QuantizedRecurrent dynamic_quantized_gru(Value x, Value weight, Value weight_scale, Value bias, Value h0 = {},
                                         const DynamicQuantizedRecurrentAttrs& attrs = {});
QuantizedRecurrent dynamic_quantized_rnn(Value x, Value weight, Value weight_scale, Value bias, Value h0 = {},
                                         const DynamicQuantizedRnnAttrs& attrs = {});

}  // namespace galley
