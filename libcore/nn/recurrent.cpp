#include "libcore/nn/recurrent.h"

#include <cmath>

#include "libcore/ops/shape.h"

namespace galley {
namespace {

struct Pass {
  Value y, h, c;
};

/// Captures one layer in one direction.
Pass one_pass(Value x, const RecurrentOptions& options, const RecurrentWeights& weights, Value h0, Value c0, bool reverse, bool training) {
  if (options.cell == Cell::kRnn) {
    RnnAttrs attrs;
    attrs.nonlinearity = options.nonlinearity;
    attrs.reverse = reverse;
    const Rnn r = rnn(x, weights, h0, attrs);
    return {r.y, r.h, {}};
  }
  RecurrentAttrs attrs;
  attrs.reverse = reverse;
  attrs.save = training;
  if (options.cell == Cell::kGru) {
    const Gru r = gru(x, weights, h0, attrs);
    return {r.y, r.h, {}};
  }
  const Lstm r = lstm(x, weights, h0, c0, attrs);
  return {r.y, r.h, r.c};
}

}  // namespace

Recurrent recurrent(Builder& b, std::string_view name, Value x, const RecurrentOptions& options) {
  const PathScope module = b.scope(name);
  const std::string_view type = kCellNames[static_cast<size_t>(options.cell)];
  const int64_t hidden = options.hidden_size, directions = options.bidirectional ? 2 : 1, states = options.num_layers * directions;
  GALLEY_CHECK(x.shape().rank() == 3, "[", type, "] needs an input with 3 dimensions [N,T,C] (batch, steps, features), not ", x.type(),
               ", at ", b.graph().path());
  GALLEY_CHECK(hidden >= 1 && options.num_layers >= 1, "[", type, "] hidden_size=", hidden, " and num_layers=", options.num_layers,
               " must be at least 1, at ", b.graph().path());
  for (const std::vector<Value>* given : {&options.h0, &options.c0}) {
    GALLEY_CHECK(given->empty() || static_cast<int64_t>(given->size()) == states, "[", type, "] needs ", states,
                 " initial states (layers x directions), but has ", given->size(), ", at ", b.graph().path());
  }
  const int64_t gates = options.cell == Cell::kLstm ? 4 : options.cell == Cell::kGru ? 3 : 1;
  const Init init = Init::uniform(1.0 / std::sqrt(static_cast<double>(hidden)));
  Recurrent result;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    std::vector<Value> passes;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const std::string suffix = cat("_l", layer, direction == 1 ? "_reverse" : "");
      RecurrentWeights weights;
      weights.ih = b.parameter("weight_ih" + suffix, {gates * hidden, x.shape()[2]}, init, type);
      weights.hh = b.parameter("weight_hh" + suffix, {gates * hidden, hidden}, init, type);
      if (options.bias) {
        weights.bias_ih = b.parameter("bias_ih" + suffix, {gates * hidden}, init, type);
        weights.bias_hh = b.parameter("bias_hh" + suffix, {gates * hidden}, init, type);
      }
      const size_t state = static_cast<size_t>(layer * directions + direction);
      const Value h0 = options.h0.empty() ? Value() : options.h0[state], c0 = options.c0.empty() ? Value() : options.c0[state];
      const Pass pass = one_pass(x, options, weights, h0, c0, direction == 1, b.training());
      passes.push_back(pass.y);
      result.h.push_back(pass.h);
      if (pass.c) result.c.push_back(pass.c);
    }
    ConcatAttrs side_by_side;
    side_by_side.axis = 2;
    x = passes.size() == 1 ? passes.front() : concat(passes, side_by_side);
    if (layer + 1 < options.num_layers) x = b.dropout(cat("dropout_l", layer), x, options.dropout);
  }
  result.y = x;
  return result;
}

}  // namespace galley
