// Definitions of recurrent layers and their backward operators. They compute one step after the other.

#include <functional>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
Value step_of(Value sequence, int64_t t) { return reshape(slice(sequence, 1, t, t + 1), Shape{sequence.shape()[0], sequence.shape()[2]}); }

Value gate_of(Value gates, int64_t g, int64_t hidden) { return slice(gates, 1, g * hidden, (g + 1) * hidden); }

Value sequence_of(Graph& graph, DType dtype, const std::vector<Value>& steps, int64_t batch, int64_t width) {
  if (steps.empty()) return full(graph, {dtype, {batch, 0, width}, {}, {}}, 0);
  std::vector<Value> rows;
  for (Value step : steps) rows.push_back(reshape(step, Shape{batch, 1, width}));
  if (rows.size() == 1) return rows[0];
  return concat(rows, ConcatAttrs());
}

namespace {

/// Inputs of a forward operator: x, weight_ih, weight_hh, bias_ih?, bias_hh?, h0?.
class Forward {
 public:
  explicit Forward(Expansion& e) : e_(e), batch_(e.in(0).shape()[0]), steps_(e.in(0).shape()[1]), hidden_(e.in(2).shape()[1]) {
    input_ = matmul(e.in(0), e.in(1), {false, true});  // W_ih x + b_ih for all steps
    if (e.has(3)) input_ = add(input_, e.in(3));
  }
  int64_t hidden() const { return hidden_; }
  Value state(size_t input) const { return e_.has(input) ? e_.in(input) : e_.constant(0, {batch_, hidden_}); }
  /// W_hh h + b_hh.
  Value of_state(Value h) const {
    const Value product = matmul(h, e_.in(2), {false, true});
    return e_.has(4) ? add(product, e_.in(4)) : product;
  }
  /// Calls cell(W_ih x + b_ih of the step, h, step) for each step; it returns the new h.
  Value run(bool reverse, Value h, const std::function<Value(Value input, Value h, int64_t t)>& cell) {
    std::vector<Value> states(static_cast<size_t>(steps_));
    for (int64_t turn = 0; turn < steps_; ++turn) {
      const int64_t t = step_at(turn, steps_, reverse);
      h = states[static_cast<size_t>(t)] = cell(step_of(input_, t), h, t);
    }
    e_.set(0, sequence_of(e_.graph(), e_.compute(), states, batch_, hidden_));
    e_.set(1, h);
    return h;
  }
  /// Sets output i to the values that the backward operator needs, rows [N,width H] per step, or to an empty array.
  void save(size_t i, bool saves, const std::vector<Value>& rows, int64_t width) const {
    e_.set(i, saves ? sequence_of(e_.graph(), e_.compute(), rows, batch_, width * hidden_) : e_.constant(0, {0}));
  }
  std::vector<Value> rows() const { return std::vector<Value>(static_cast<size_t>(steps_)); }

 private:
  Expansion& e_;
  int64_t batch_, steps_, hidden_;
  Value input_;
};

/// Sum of the gradients of h at a step from y and from later steps; either may be absent.
Value sum_of(Value a, Value b) { return a && b ? add(a, b) : a ? a : b; }

struct Backward {
  Expansion& e;
  bool reverse;
  int64_t batch, steps, hidden;
  Backward(Expansion& expansion, Value saved, Value weight, bool backwards)
      : e(expansion), reverse(backwards), batch(saved.shape()[0]), steps(saved.shape()[1]), hidden(weight.shape()[1]) {}
  Value zeros() const { return e.constant(0, {batch, hidden}); }
  /// The state before step number `turn` in the order of computation: that of the previous step, or the initial one.
  Value before(Value states, int64_t turn, size_t initial) const {
    if (turn > 0) return step_of(states, step_at(turn - 1, steps, reverse));
    return e.has(initial) ? e.in(initial) : zeros();
  }
  Value initial(size_t input) const { return e.has(input) ? e.in(input) : zeros(); }
  Value grad_at(int64_t t, Value carried) const { return sum_of(e.has(0) ? step_of(e.in(0), t) : Value(), carried); }
};

/// 1 - v.
Value rest(Value v) { return affine(v, -1, 1); }
/// Gradient of sigmoid's input, d v (1 - v), for its output v.
Value through_sigmoid(Value d, Value v) { return mul(d, mul(v, rest(v))); }
/// Gradient of tanh's input, d (1 - v^2), for its output v.
Value through_tanh(Value d, Value v) { return mul(d, rest(square(v))); }

Value joined(const std::vector<Value>& parts) { return concat(parts, ConcatAttrs()); }

}  // namespace

void lstm(Expansion& e) {
  const auto& a = e.attrs<RecurrentAttrs>();
  Forward f(e);
  const int64_t hidden = f.hidden();
  std::vector<Value> gates = f.rows(), cells = f.rows();
  Value c = f.state(6);
  f.run(a.reverse, f.state(5), [&](Value input, Value h, int64_t t) {
    const Value z = add(input, f.of_state(h));
    const Value i = sigmoid(gate_of(z, 0, hidden)), forget = sigmoid(gate_of(z, 1, hidden)), g = tanh(gate_of(z, 2, hidden)),
                o = sigmoid(gate_of(z, 3, hidden));
    c = add(mul(forget, c), mul(i, g));
    gates[static_cast<size_t>(t)] = a.save ? joined({i, forget, g, o}) : Value();
    cells[static_cast<size_t>(t)] = c;
    return mul(o, tanh(c));
  });
  e.set(2, c);
  f.save(3, a.save, gates, 4);
  f.save(4, a.save, cells, 1);
}

void gru(Expansion& e) {
  const auto& a = e.attrs<RecurrentAttrs>();
  Forward f(e);
  const int64_t hidden = f.hidden();
  std::vector<Value> gates = f.rows();
  f.run(a.reverse, f.state(5), [&](Value input, Value h, int64_t t) {
    const Value state = f.of_state(h), q = gate_of(state, 2, hidden);
    const Value r = sigmoid(add(gate_of(input, 0, hidden), gate_of(state, 0, hidden))),
                z = sigmoid(add(gate_of(input, 1, hidden), gate_of(state, 1, hidden)));
    const Value n = tanh(add(gate_of(input, 2, hidden), mul(r, q)));
    gates[static_cast<size_t>(t)] = a.save ? joined({r, z, n, q}) : Value();
    return add(mul(rest(z), n), mul(z, h));
  });
  f.save(2, a.save, gates, 4);
}

void rnn(Expansion& e) {
  const auto& a = e.attrs<RnnAttrs>();
  Forward f(e);
  f.run(a.reverse, f.state(5), [&](Value input, Value h, int64_t) {
    const Value z = add(input, f.of_state(h));
    return a.nonlinearity == Nonlinearity::kTanh ? tanh(z) : relu(z);
  });
}

void lstm_backward(Expansion& e) {
  const Value gates = e.in(3), cells = e.in(4), weight = e.in(5);
  const Backward b(e, cells, weight, e.attrs<RecurrentBackwardAttrs>().reverse);
  std::vector<Value> rows(static_cast<size_t>(b.steps));
  Value dh = b.initial(1), dc = b.initial(2);
  for (int64_t turn = b.steps - 1; turn >= 0; --turn) {
    const int64_t t = step_at(turn, b.steps, b.reverse);
    const Value saved = step_of(gates, t), tanh_c = tanh(step_of(cells, t));
    const Value i = gate_of(saved, 0, b.hidden), f = gate_of(saved, 1, b.hidden), g = gate_of(saved, 2, b.hidden),
                o = gate_of(saved, 3, b.hidden);
    dh = b.grad_at(t, dh);
    dc = add(dc, through_tanh(mul(dh, o), tanh_c));
    const Value d = joined({through_sigmoid(mul(dc, g), i), through_sigmoid(mul(dc, b.before(cells, turn, 6)), f),
                            through_tanh(mul(dc, i), g), through_sigmoid(mul(dh, tanh_c), o)});
    rows[static_cast<size_t>(t)] = d;
    dc = mul(dc, f);
    dh = matmul(d, weight);
  }
  e.set(0, sequence_of(e.graph(), e.compute(), rows, b.batch, 4 * b.hidden));
  e.set(1, dh);
  e.set(2, dc);
}

void gru_backward(Expansion& e) {
  const Value gates = e.in(2), y = e.in(3), weight = e.in(4);
  const Backward b(e, y, weight, e.attrs<RecurrentBackwardAttrs>().reverse);
  std::vector<Value> inputs(static_cast<size_t>(b.steps)), states = inputs;
  Value dh = b.initial(1);
  for (int64_t turn = b.steps - 1; turn >= 0; --turn) {
    const int64_t t = step_at(turn, b.steps, b.reverse);
    const Value saved = step_of(gates, t);
    const Value r = gate_of(saved, 0, b.hidden), z = gate_of(saved, 1, b.hidden), n = gate_of(saved, 2, b.hidden),
                q = gate_of(saved, 3, b.hidden);
    dh = b.grad_at(t, dh);
    const Value dn = through_tanh(mul(dh, rest(z)), n), dz = through_sigmoid(mul(dh, sub(b.before(y, turn, 5), n)), z),
                dr = through_sigmoid(mul(dn, q), r);
    inputs[static_cast<size_t>(t)] = joined({dr, dz, dn});
    states[static_cast<size_t>(t)] = joined({dr, dz, mul(dn, r)});
    dh = add(mul(dh, z), matmul(states[static_cast<size_t>(t)], weight));
  }
  e.set(0, sequence_of(e.graph(), e.compute(), inputs, b.batch, 3 * b.hidden));
  e.set(1, sequence_of(e.graph(), e.compute(), states, b.batch, 3 * b.hidden));
  e.set(2, dh);
}

void rnn_backward(Expansion& e) {
  const auto& a = e.attrs<RnnAttrs>();
  const Value y = e.in(2), weight = e.in(3);
  const Backward b(e, y, weight, a.reverse);
  std::vector<Value> rows(static_cast<size_t>(b.steps));
  Value dh = b.initial(1);
  for (int64_t turn = b.steps - 1; turn >= 0; --turn) {
    const int64_t t = step_at(turn, b.steps, b.reverse);
    const Value h = step_of(y, t), d = b.grad_at(t, dh);
    rows[static_cast<size_t>(t)] = a.nonlinearity == Nonlinearity::kTanh ? tanh_backward(d, h) : relu_backward(d, h);
    dh = matmul(rows[static_cast<size_t>(t)], weight);
  }
  e.set(0, sequence_of(e.graph(), e.compute(), rows, b.batch, b.hidden));
  e.set(1, dh);
}

}  // namespace galley::definition
