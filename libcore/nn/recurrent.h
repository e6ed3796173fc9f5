#pragma once
// Recurrent layers: stacked, optionally bidirectional, with dropout between layers. Parameters have the names of torch.nn.LSTM, GRU and
// RNN.

#include <array>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/ops/recurrent.h"

namespace galley {

/// The kind of recurrent cell; kRnn is the plain (Elman) cell.
enum class Cell { kLstm, kGru, kRnn };
inline constexpr std::array<std::string_view, 3> kCellNames{"lstm", "gru", "rnn"};

/// Options of `recurrent`.
struct RecurrentOptions {
  Cell cell = Cell::kLstm;
  int64_t hidden_size;
  int64_t num_layers = 1;
  bool bias = true;
  double dropout = 0;  // of the outputs of all layers except the last, in training
  bool bidirectional = false;
  Nonlinearity nonlinearity = Nonlinearity::kTanh;  // of kRnn
  /// Initial states [N,H], in the order layer 0, layer 0 reverse, layer 1, ...; empty: zeros. Only an LSTM has c0.
  std::vector<Value> h0 = {}, c0 = {};
};

/// Outputs of `recurrent`.
struct Recurrent {
  Value y;                  // [N,T,H], bidirectional [N,T,2H]
  std::vector<Value> h, c;  // final states [N,H], in the order of h0
};

/// Captures the layers on x [N,T,C]. Parameters: weight_ih_l0 [G H,C], weight_hh_l0 [G H,H], bias_ih_l0 and bias_hh_l0 [G H], with the
/// suffix `_reverse` for the second direction; ops/recurrent.h defines G and the order of gates. All are initialized uniformly within 1 /
/// sqrt(H).
Recurrent recurrent(Builder& b, std::string_view name, Value x, const RecurrentOptions& options);

}  // namespace galley
