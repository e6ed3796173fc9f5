// LSTM, GRU, RNN: steps come first in ONNX, each direction has an axis, and gates have another order.

#include <algorithm>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

struct Layer {
  Value x;  // [N,T,C]
  RecurrentWeights weights;
  Value h0, c0;
  bool reverse = false;
};
struct Results {
  Value y, h, c;
};

/// Rows of gates [G H,...] in another order.
Value gates(Value weight, const std::vector<int64_t>& order, int64_t hidden) {
  if (order.size() == 1) return weight;
  std::vector<Value> parts;
  for (const int64_t gate : order) parts.push_back(slice(weight, 0, gate * hidden, (gate + 1) * hidden));
  ConcatAttrs rows;
  rows.axis = 0;
  return concat(parts, rows);
}

void recurrent_node(Call& c, const std::vector<int64_t>& order, Results (*run)(const Layer& layer, const std::vector<std::string>& functions), const std::vector<std::string>& usual) {
  const Value x = c.x(0);
  const Value w = c.x(1), r = c.x(2);
  GALLEY_CHECK_INPUT(x.shape().rank() == 3 && w.shape().rank() == 3 && r.shape().rank() == 3, "input and weights want 3 dimensions: ", x.type(), ", ", w.type(), ", ", r.type());
  const std::string direction = c.text("direction", "forward");
  const int64_t hidden = c.integer("hidden_size", r.shape()[2]), directions = w.shape()[0], count = static_cast<int64_t>(order.size());
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") c.refuse(cat("direction ", direction, " is not known"));
  GALLEY_CHECK_INPUT(directions == (direction == "bidirectional" ? 2 : 1), "direction is ", direction, ", the weight ", w.type());
  GALLEY_CHECK_INPUT(hidden >= 1 && r.shape()[2] == hidden && w.shape()[1] == count * hidden, "hidden_size is ", hidden, ", the weights are ", w.type(), " and ", r.type());
  if (c.integer("layout", 0) != 0) c.refuse("layout is 1 (the batch first), 0 is known");
  if (c.integer("input_forget", 0) != 0 || c.find("clip") != nullptr) c.refuse("it has clip or input_forget");
  for (const char* ignored : {"activation_alpha", "activation_beta"}) c.find(ignored);
  if (c.has(4) && !c.constant(4)) c.refuse("its samples have lengths of their own (sequence_lens)");
  if (c.has(4)) {
    for (const int64_t length : c.ints(4)) GALLEY_CHECK_INPUT(length == x.shape()[0], "a sample has ", length, " of ", x.shape()[0], " steps (sequence_lens): all are known");
  }
  if (c.has(7)) c.refuse("it has peepholes");
  std::vector<std::string> functions = c.texts("activations");
  if (functions.empty()) {
    for (int64_t d = 0; d < directions; ++d) functions.insert(functions.end(), usual.begin(), usual.end());
  }
  GALLEY_CHECK_INPUT(functions.size() == usual.size() * static_cast<size_t>(directions), "it names ", functions.size(), " activations");

  const Value steps = transpose(x, 0, 1);
  std::vector<Results> made;
  for (int64_t d = 0; d < directions; ++d) {
    const auto part = [&](Value all) { return squeeze(slice(all, 0, d, d + 1), 0); };
    Layer layer{.x = steps, .reverse = direction == "reverse" || d == 1};
    layer.weights.ih = gates(part(w), order, hidden);
    layer.weights.hh = gates(part(r), order, hidden);
    if (c.has(3)) {
      const Value both = part(c.x(3));
      GALLEY_CHECK_INPUT(both.shape() == Shape({2 * count * hidden}), "the bias is ", both.type(), ", ", 2 * count * hidden, " numbers are wanted");
      layer.weights.bias_ih = gates(slice(both, 0, 0, count * hidden), order, hidden);
      layer.weights.bias_hh = gates(slice(both, 0, count * hidden, 2 * count * hidden), order, hidden);
    }
    if (c.has(5)) layer.h0 = part(c.x(5));
    if (c.has(6)) layer.c0 = part(c.x(6));
    const auto begin = functions.begin() + d * static_cast<int64_t>(usual.size());
    const std::vector<std::string> own(begin, begin + static_cast<int64_t>(usual.size()));
    if (own != usual && usual.size() > 1) c.refuse("its activations are not the usual ones");
    made.push_back(run(layer, own));
  }
  // [T,directions,N,H] and [directions,N,H].
  std::vector<Value> y, h, cells;
  for (const Results& result : made) {
    y.push_back(unsqueeze(transpose(result.y, 0, 1), 1));
    h.push_back(unsqueeze(result.h, 0));
    if (result.c) cells.push_back(unsqueeze(result.c, 0));
  }
  const auto join = [](const std::vector<Value>& parts, int64_t axis) {
    ConcatAttrs attrs;
    attrs.axis = axis;
    return parts.size() == 1 ? parts.front() : concat(parts, attrs);
  };
  if (c.wants_output(0)) c.set(0, join(y, 1));
  if (c.wants_output(1)) c.set(1, join(h, 0));
  if (c.wants_output(2) && !cells.empty()) c.set(2, join(cells, 0));
}

RecurrentAttrs how(const Layer& layer, bool save) {
  RecurrentAttrs attrs;
  attrs.reverse = layer.reverse;
  attrs.save = save;
  return attrs;
}

template <bool kSave>
Results run_lstm(const Layer& layer, const std::vector<std::string>&) {
  GALLEY_CHECK_INPUT(bool(layer.h0) == bool(layer.c0), "it has one of the two initial states");
  const Lstm made = lstm(layer.x, layer.weights, layer.h0, layer.c0, how(layer, kSave));
  return {made.y, made.h, made.c};
}
template <bool kSave>
Results run_gru(const Layer& layer, const std::vector<std::string>&) {
  const Gru made = gru(layer.x, layer.weights, layer.h0, how(layer, kSave));
  return {made.y, made.h, {}};
}
Results run_rnn(const Layer& layer, const std::vector<std::string>& functions) {
  RnnAttrs attrs;
  attrs.reverse = layer.reverse;
  GALLEY_CHECK_INPUT(functions[0] == "Tanh" || functions[0] == "Relu", "its activation ", functions[0], " is not known, Tanh and Relu are");
  attrs.nonlinearity = functions[0] == "Tanh" ? Nonlinearity::kTanh : Nonlinearity::kRelu;
  const Rnn made = rnn(layer.x, layer.weights, layer.h0, attrs);
  return {made.y, made.h, {}};
}

void lstm_node(Call& c) {  // i o f c -> i f g o
  recurrent_node(c, {0, 2, 3, 1}, c.to.builder().training() ? run_lstm<true> : run_lstm<false>, {"Sigmoid", "Tanh", "Tanh"});
}
void gru_node(Call& c) {  // z r h -> r z n
  if (c.integer("linear_before_reset", 0) != 1) c.refuse("the reset comes before the product (linear_before_reset=0)", "export it from PyTorch, which does the other");
  recurrent_node(c, {1, 0, 2}, c.to.builder().training() ? run_gru<true> : run_gru<false>, {"Sigmoid", "Tanh"});
}
void rnn_node(Call& c) { recurrent_node(c, {0}, run_rnn, {"Tanh"}); }

}  // namespace

MakeTable recurrent_rows() { return {{"LSTM", lstm_node}, {"GRU", gru_node}, {"RNN", rnn_node}}; }

}  // namespace galley::onnx_import
