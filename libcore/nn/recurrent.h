#pragma once
// Recurrent layers of a model: several layers, both directions, dropout between layers; parameters as torch.nn.LSTM, GRU and RNN name them.

#include <array>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/ops/recurrent.h"

namespace galley {

enum class Cell { kLstm, kGru, kRnn };
inline constexpr std::array<std::string_view, 3> kCellNames{"lstm", "gru", "rnn"};

struct RecurrentOptions {
  Cell cell = Cell::kLstm;
  int64_t hidden_size;
  int64_t num_layers = 1;
  bool bias = true;
  double dropout = 0;  // of each layer's output but the last one's, while training
  bool bidirectional = false;
  Nonlinearity nonlinearity = Nonlinearity::kTanh;  // of the plain cell
  /// Initial states [N,H], in the order layer 0, layer 0 reverse, layer 1, ...; empty: zeros. c0 for an LSTM alone.
  std::vector<Value> h0 = {}, c0 = {};
};

struct Recurrent {
  Value y;                  // [N,T,H], both directions [N,T,2H]
  std::vector<Value> h, c;  // final states [N,H], in the order of h0
};

/// x [N,T,C]. Parameters weight_ih_l0 [G H,C], weight_hh_l0 [G H,H], bias_ih_l0, bias_hh_l0 [G H], with `_reverse` for the other direction;
/// G and the order of gates: ops/recurrent.h. All start uniform within 1 / sqrt(H).
Recurrent recurrent(Builder& b, std::string_view name, Value x, const RecurrentOptions& options);

}  // namespace galley
