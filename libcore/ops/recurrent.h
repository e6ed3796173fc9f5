#pragma once
// Recurrent layers: one layer and direction of an LSTM, GRU or plain RNN over a whole sequence, with explicit state, and their backward
// operators. Cells, order of gates and layout of weights are those of torch.nn.

#include <array>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct RecurrentAttrs : OptionsOf<RecurrentAttrs> {
  bool reverse = false;  // from the last step to the first; y[t] stays at t
  bool save = true;      // the outputs after the state hold what the backward pass reads; false: they are empty ([0])
  void options(OptionVisitor& v) override;
};
struct RecurrentBackwardAttrs : OptionsOf<RecurrentBackwardAttrs> {
  bool reverse = false;
  void options(OptionVisitor& v) override;
};

enum class Nonlinearity { kTanh, kRelu };
inline constexpr std::array<std::string_view, 2> kNonlinearityNames{"tanh", "relu"};

struct RnnAttrs : OptionsOf<RnnAttrs> {
  Nonlinearity nonlinearity = Nonlinearity::kTanh;
  bool reverse = false;
  void options(OptionVisitor& v) override;
};

const OpDef& lstm_op();
const OpDef& lstm_backward_op();
const OpDef& gru_op();
const OpDef& gru_backward_op();
const OpDef& rnn_op();
const OpDef& rnn_backward_op();

/// Weights of one layer and direction, G gates (LSTM 4: i f g o; GRU 3: r z n; RNN 1): ih [G H,C], hh [G H,H], biases [G H] or absent.
struct RecurrentWeights {
  Value ih, hh, bias_ih, bias_hh;
};

struct Lstm {
  Value y, h, c;       // [N,T,H]; the last step's [N,H]
  Value gates, cells;  // saved: activated gates [N,T,4H], c of each step [N,T,H]
};
/// x [N,T,C]; h0 and c0 [N,H], or both absent: zeros. Hochreiter, Schmidhuber 1997, with forget gate:
///   i, f, o = sigmoid, g = tanh (W_ih x + b_ih + W_hh h + b_hh);  c = f c + i g;  h = o tanh(c)
Lstm lstm(Value x, const RecurrentWeights& weights, Value h0 = {}, Value c0 = {}, const RecurrentAttrs& attrs = {});
/// (gradient of the inputs of the gates [N,T,4H], of h0, of c0). At least one of the gradients of y, h and c must be given.
std::vector<Value> lstm_backward(Value grad_y, Value grad_h, Value grad_c, Value gates, Value cells, Value weight_hh, Value c0,
                                 const RecurrentBackwardAttrs& attrs);

struct Gru {
  Value y, h;   // [N,T,H]; the last step's [N,H]
  Value gates;  // saved: r, z, n and W_hn h + b_hn of each step, [N,T,4H]
};
/// Cho et al. 2014, in the form of cuDNN and PyTorch:
///   r, z = sigmoid (W_ih x + b_ih + W_hh h + b_hh);  n = tanh(W_in x + b_in + r (W_hn h + b_hn));  h = (1 - z) n + z h
Gru gru(Value x, const RecurrentWeights& weights, Value h0 = {}, const RecurrentAttrs& attrs = {});
/// (gradient of W_ih x + b_ih [N,T,3H], of W_hh h + b_hh [N,T,3H], of h0).
std::vector<Value> gru_backward(Value grad_y, Value grad_h, Value gates, Value y, Value weight_hh, Value h0,
                                const RecurrentBackwardAttrs& attrs);

struct Rnn {
  Value y, h;  // [N,T,H]; the last step's [N,H]
};
/// Elman 1990: h = tanh or relu (W_ih x + b_ih + W_hh h + b_hh).
Rnn rnn(Value x, const RecurrentWeights& weights, Value h0 = {}, const RnnAttrs& attrs = {});
/// (gradient of the input of the nonlinearity [N,T,H], of h0).
std::vector<Value> rnn_backward(Value grad_y, Value grad_h, Value y, Value weight_hh, const RnnAttrs& attrs);

}  // namespace galley
