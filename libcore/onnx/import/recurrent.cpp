// Imports LSTM, GRU and RNN. ONNX puts time first, has an axis for directions, and orders gates differently.

#include "libcore/ops/recurrent.h"

#include <algorithm>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kMaxSteps = 1024;  // limit of time steps of an unrolled layer

struct Layer {
  Value x;  // [N,T,C]
  RecurrentWeights weights;
  Value h0, c0;
  bool reverse = false;
};
struct Results {
  Value y, h, c;
};

/// Reorders the gates of a weight [G H,...].
Value gates(Value weight, const std::vector<int64_t>& order, int64_t hidden) {
  if (order.size() == 1) return weight;
  std::vector<Value> parts;
  for (const int64_t gate : order) parts.push_back(slice(weight, 0, gate * hidden, (gate + 1) * hidden));
  ConcatAttrs rows;
  rows.axis = 0;
  return concat(parts, rows);
}

using Run = Results (*)(const Layer& layer, const std::vector<std::string>& functions);

/// The properties of the node except for its weights.
struct Form {
  std::vector<int64_t> order;  // for each of Galley's gates, its position in the file
  int64_t hidden = 0, directions = 1;
  bool reverse = false, batch_first = false;
  std::vector<std::string> functions;  // activations, for all directions

  int64_t gates() const { return static_cast<int64_t>(order.size()); }
};

void check_lengths(const Call& c, int64_t steps) {
  if (!c.has(4)) return;
  if (!c.constant(4)) c.refuse("its sequence lengths (sequence_lens) are not constant, which is not supported");
  for (const int64_t length : c.ints(4))
    GALLEY_CHECK_INPUT(length == steps, "a sequence length (sequence_lens) is ", length, ", but must be ", steps);
}

Form form_of(Call& c, std::vector<int64_t> order, const std::vector<std::string>& usual) {
  Form form{.order = std::move(order), .functions = {}};
  const Value x = c.x(0), w = c.x(1), r = c.x(2);
  GALLEY_CHECK_INPUT(x.shape().rank() == 3 && w.shape().rank() == 3 && r.shape().rank() == 3,
                     "its input and weights must have 3 dimensions: ", x.type(), ", ", w.type(), ", ", r.type());
  const std::string direction = c.text("direction", "forward");
  form.hidden = c.integer("hidden_size", r.shape()[2]);
  form.directions = w.shape()[0];
  form.reverse = direction == "reverse";
  form.batch_first = c.integer("layout", 0) != 0;
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    c.refuse(cat("direction '", direction, "' is not supported"));
  GALLEY_CHECK_INPUT(form.directions == (direction == "bidirectional" ? 2 : 1), "direction is ", direction,
                     ", which does not fit the weight ", w.type());
  GALLEY_CHECK_INPUT(form.hidden >= 1 && r.shape()[2] == form.hidden && w.shape()[1] == form.gates() * form.hidden, "hidden_size is ",
                     form.hidden, ", which does not fit the weights ", w.type(), " and ", r.type());
  if (c.integer("input_forget", 0) != 0 || c.find("clip") != nullptr) c.refuse("clip and input_forget are not supported");
  for (const char* ignored : {"activation_alpha", "activation_beta", "output_sequence"}) c.find(ignored);
  check_lengths(c, x.shape()[form.batch_first ? 1 : 0]);
  if (c.has(7)) c.refuse("peepholes are not supported");
  form.functions = c.texts("activations");
  if (form.functions.empty()) {
    for (int64_t d = 0; d < form.directions; ++d) form.functions.insert(form.functions.end(), usual.begin(), usual.end());
  }
  GALLEY_CHECK_INPUT(form.functions.size() == usual.size() * static_cast<size_t>(form.directions), "it has ", form.functions.size(),
                     " activations, but must have ", usual.size() * static_cast<size_t>(form.directions));
  return form;
}

/// Weights and states of one direction.
Layer layer_of(Call& c, const Form& form, Value steps, int64_t d) {
  const int64_t rows = form.gates() * form.hidden;
  const auto part = [&](Value all, int64_t axis) { return squeeze(slice(all, axis, d, d + 1), axis); };
  Layer layer{.x = steps, .reverse = form.reverse || d == 1};
  layer.weights.ih = gates(part(c.x(1), 0), form.order, form.hidden);
  layer.weights.hh = gates(part(c.x(2), 0), form.order, form.hidden);
  if (c.has(3)) {
    const Value both = part(c.x(3), 0);
    GALLEY_CHECK_INPUT(both.shape() == Shape({2 * rows}), "its bias is ", both.type(), ", but must have ", 2 * rows,
                       " elements per direction");
    layer.weights.bias_ih = gates(slice(both, 0, 0, rows), form.order, form.hidden);
    layer.weights.bias_hh = gates(slice(both, 0, rows, 2 * rows), form.order, form.hidden);
  }
  const int64_t axis = form.batch_first ? 1 : 0;
  if (c.has(5)) layer.h0 = part(c.x(5), axis);
  if (c.has(6)) layer.c0 = part(c.x(6), axis);
  return layer;
}

void recurrent_node(Call& c, const std::vector<int64_t>& order, Run run, const std::vector<std::string>& usual) {
  const Form form = form_of(c, order, usual);
  const Value steps = form.batch_first ? c.x(0) : transpose(c.x(0), 0, 1);
  // Outputs are [N,T,directions,H] and [N,directions,H] with layout=1, otherwise [T,directions,N,H] and [directions,N,H].
  std::vector<Value> y, h, cells;
  const int64_t sequence_axis = form.batch_first ? 2 : 1, state_axis = form.batch_first ? 1 : 0;
  for (int64_t d = 0; d < form.directions; ++d) {
    const auto begin = form.functions.begin() + d * static_cast<int64_t>(usual.size());
    const std::vector<std::string> own(begin, begin + static_cast<int64_t>(usual.size()));
    if (own != usual && usual.size() > 1) c.refuse("only the default activations are supported");
    const Results result = run(layer_of(c, form, steps, d), own);
    y.push_back(unsqueeze(form.batch_first ? result.y : transpose(result.y, 0, 1), sequence_axis));
    h.push_back(unsqueeze(result.h, state_axis));
    if (result.c) cells.push_back(unsqueeze(result.c, state_axis));
  }
  const auto join = [](const std::vector<Value>& parts, int64_t axis) {
    ConcatAttrs attrs;
    attrs.axis = axis;
    return parts.size() == 1 ? parts.front() : concat(parts, attrs);
  };
  if (c.needs_output(0)) c.set(0, join(y, sequence_axis));
  if (c.needs_output(1)) c.set(1, join(h, state_axis));
  if (c.needs_output(2) && !cells.empty()) c.set(2, join(cells, state_axis));
}

RecurrentAttrs attributes_of(const Layer& layer, bool save) {
  RecurrentAttrs attrs;
  attrs.reverse = layer.reverse;
  attrs.save = save;
  return attrs;
}

template <bool kSave>
Results run_lstm(const Layer& layer, const std::vector<std::string>&) {
  // Galley's layer takes both initial states or none.
  const auto state = [&](Value own, Value other) {
    return own || !other ? own : full(other.graph(), {.dtype = other.dtype(), .shape = other.shape()}, 0);
  };
  const Lstm made = lstm(layer.x, layer.weights, state(layer.h0, layer.c0), state(layer.c0, layer.h0), attributes_of(layer, kSave));
  return {made.y, made.h, made.c};
}
template <bool kSave>
Results run_gru(const Layer& layer, const std::vector<std::string>&) {
  const Gru made = gru(layer.x, layer.weights, layer.h0, attributes_of(layer, kSave));
  return {made.y, made.h, {}};
}
/// Unrolled GRU with the reset gate applied before the product (linear_before_reset=0); Galley's layer applies it after, as PyTorch does.
Results run_gru_by_steps(const Layer& layer, const std::vector<std::string>&) {
  const int64_t samples = layer.x.shape()[0], steps = layer.x.shape()[1], hidden = layer.weights.hh.shape()[1];
  GALLEY_CHECK_INPUT(steps >= 1 && steps <= kMaxSteps, "it has ", steps, " steps with linear_before_reset=0, but must have 1 to ",
                     kMaxSteps);
  const auto rows = [&](Value all, int64_t first, int64_t last) { return all ? slice(all, 0, first * hidden, last * hidden) : Value(); };
  const Value fed = linear(layer.x, layer.weights.ih, layer.weights.bias_ih);  // [N,T,3H]: r, z, n
  const Value gates_hh = rows(layer.weights.hh, 0, 2), gates_bias = rows(layer.weights.bias_hh, 0, 2);
  const Value new_hh = rows(layer.weights.hh, 2, 3), new_bias = rows(layer.weights.bias_hh, 2, 3);
  Value h = layer.h0 ? layer.h0 : full(layer.x.graph(), {.dtype = layer.x.dtype(), .shape = {samples, hidden}}, 0);
  std::vector<Value> all(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = layer.reverse ? steps - 1 - i : i;
    const Value now = squeeze(slice(fed, 1, t, t + 1), 1);
    const Value both = sigmoid(add(slice(now, 1, 0, 2 * hidden), linear(h, gates_hh, gates_bias)));
    const Value reset = slice(both, 1, 0, hidden), update = slice(both, 1, hidden, 2 * hidden);
    const Value candidate = tanh(add(slice(now, 1, 2 * hidden, 3 * hidden), linear(mul(reset, h), new_hh, new_bias)));
    h = add(candidate, mul(update, sub(h, candidate)));
    all[static_cast<size_t>(t)] = unsqueeze(h, 1);
  }
  ConcatAttrs attrs;
  attrs.axis = 1;
  return {concat(all, attrs), h, {}};
}
Results run_rnn(const Layer& layer, const std::vector<std::string>& functions) {
  RnnAttrs attrs;
  attrs.reverse = layer.reverse;
  GALLEY_CHECK_INPUT(functions[0] == "Tanh" || functions[0] == "Relu", "its activation is ", functions[0], ", but must be Tanh or Relu");
  attrs.nonlinearity = functions[0] == "Tanh" ? Nonlinearity::kTanh : Nonlinearity::kRelu;
  const Rnn made = rnn(layer.x, layer.weights, layer.h0, attrs);
  return {made.y, made.h, {}};
}

void lstm_node(Call& c) {  // i o f c -> i f g o
  recurrent_node(c, {0, 2, 3, 1}, c.to.builder().training() ? run_lstm<true> : run_lstm<false>, {"Sigmoid", "Tanh", "Tanh"});
}
void gru_node(Call& c) {  // z r h -> r z n
  if (c.integer("linear_before_reset", 0) == 0) return recurrent_node(c, {1, 0, 2}, run_gru_by_steps, {"Sigmoid", "Tanh"});
  recurrent_node(c, {1, 0, 2}, c.to.builder().training() ? run_gru<true> : run_gru<false>, {"Sigmoid", "Tanh"});
}
void rnn_node(Call& c) { recurrent_node(c, {0}, run_rnn, {"Tanh"}); }

}  // namespace

MakeTable recurrent_rows() { return {{"LSTM", lstm_node}, {"GRU", gru_node}, {"RNN", rnn_node}}; }

}  // namespace galley::onnx_import
