// Definitions of recurrent layers whose state is quantized at each step. They compute one step after the other, in double.

#include <functional>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/quantized_recurrent.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

Value wide(Expansion& e, size_t i) { return e.has(i) ? cast(e.in(i), DType::kF64) : Value(); }

/// Inputs: x (the product of the input and its weights, for all steps), weight, weight_scale, bias?, h0?, c0?.
class Layer {
 public:
  Layer(Expansion& e, bool reverse, Saturation saturation)
      : e_(e),
        x_(wide(e, 0)),
        weight_(wide(e, 1)),
        scale_(wide(e, 2)),
        bias_(wide(e, 3)),
        reverse_(reverse),
        reduced_(saturation == Saturation::kReduced) {}
  int64_t hidden() const { return weight_.shape()[1]; }
  Value state(size_t input) const {
    return e_.has(input) ? wide(e_, input) : full(e_.graph(), {DType::kF64, {x_.shape()[0], hidden()}, {}, {}}, 0);
  }

  /// Calls cell(x of the step, product of the state, h) for each step; it returns the new h. The state is rounded to float32, because its
  /// integers depend on that.
  void run(const std::function<Value(Value, Value, Value)>& cell) {
    const int64_t steps = x_.shape()[1];
    std::vector<Value> states(static_cast<size_t>(steps));
    Value h = state(4);
    for (int64_t turn = 0; turn < steps; ++turn) {
      const int64_t t = step_at(turn, steps, reverse_);
      h = reduce_precision(cell(step_of(x_, t), dynamic_product(h, weight_, scale_, bias_, reduced_), h), DType::kF32);
      states[static_cast<size_t>(t)] = h;
    }
    e_.set(0, sequence_of(e_.graph(), DType::kF64, states, x_.shape()[0], hidden()));
    e_.set(1, h);
  }

 private:
  Expansion& e_;
  Value x_, weight_, scale_, bias_;
  bool reverse_, reduced_;
};

}  // namespace

void dynamic_quantized_lstm(Expansion& e) {
  const auto& a = e.attrs<DynamicQuantizedRecurrentAttrs>();
  Layer layer(e, a.reverse, a.saturation);
  Value c = layer.state(5);
  layer.run([&](Value input, Value state, Value) {
    const Value z = add(input, state);
    const auto gate = [&](int64_t g) { return gate_of(z, g, layer.hidden()); };
    c = add(mul(sigmoid(gate(1)), c), mul(sigmoid(gate(0)), tanh(gate(2))));
    return mul(sigmoid(gate(3)), tanh(c));
  });
  e.set(2, c);
}

void dynamic_quantized_gru(Expansion& e) {
  const auto& a = e.attrs<DynamicQuantizedRecurrentAttrs>();
  Layer layer(e, a.reverse, a.saturation);
  layer.run([&](Value input, Value state, Value h) {
    const auto both = [&](int64_t g) { return add(gate_of(input, g, layer.hidden()), gate_of(state, g, layer.hidden())); };
    const Value r = sigmoid(both(0)), z = sigmoid(both(1));
    const Value n = tanh(add(gate_of(input, 2, layer.hidden()), mul(r, gate_of(state, 2, layer.hidden()))));
    return add(mul(affine(z, -1, 1), n), mul(z, h));
  });
}

void dynamic_quantized_rnn(Expansion& e) {
  const auto& a = e.attrs<DynamicQuantizedRnnAttrs>();
  Layer(e, a.reverse, a.saturation).run([&](Value input, Value state, Value) {
    const Value z = add(input, state);
    return a.nonlinearity == Nonlinearity::kTanh ? tanh(z) : relu(z);
  });
}

}  // namespace galley::definition
