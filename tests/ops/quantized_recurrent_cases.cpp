// Cases of recurrent layers with weights of 8 bits and a state quantized at each step.

#include "libcore/ops/quantized_recurrent.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct QuantizedLayer {
  std::string name;
  int64_t batch, steps, hidden;
  bool bias = true, states = false, reverse = false, reduced = false;
};

struct Operands {
  Value x, weight, scale, bias;
};
Operands operands_of(CaseInputs& in, const QuantizedLayer& l, int64_t gates) {
  Operands o;
  const int64_t width = gates * l.hidden, most = l.reduced ? 64 : 127;
  o.x = in.values(
      {l.batch, l.steps, width},
      [&] {
        std::vector<double> v;
        RandomStream random(3, l.name);
        for (int64_t i = 0; i < l.batch * l.steps * width; ++i) v.push_back(static_cast<float>(random.uniform(-2, 2)));
        return v;
      }(),
      DType::kF32);
  std::vector<double> weight, scale, bias;
  RandomStream random(4, l.name);
  for (int64_t i = 0; i < width * l.hidden; ++i)
    weight.push_back(static_cast<double>(random.below(static_cast<uint64_t>(2 * most + 1))) - static_cast<double>(most));
  for (int64_t i = 0; i < width; ++i) scale.push_back(static_cast<float>(random.uniform(0.001, 0.004)));
  for (int64_t i = 0; i < width; ++i) bias.push_back(static_cast<float>(random.uniform(-0.5, 0.5)));
  o.weight = in.fixed(in.values({width, l.hidden}, weight, DType::kI8));
  o.scale = in.fixed(in.values({width}, scale, DType::kF32));
  if (l.bias) o.bias = in.fixed(in.values({width}, bias, DType::kF32));
  return o;
}
Value state_of(CaseInputs& in, const QuantizedLayer& l, std::string_view seed) {
  if (!l.states) return {};
  std::vector<double> values;
  RandomStream random(5, cat(l.name, seed));
  for (int64_t i = 0; i < l.batch * l.hidden; ++i) values.push_back(static_cast<float>(random.uniform(-1, 1)));
  return in.values({l.batch, l.hidden}, values, DType::kF32);
}

}  // namespace

std::vector<OpCase> quantized_recurrent_cases() {
  std::vector<OpCase> cases;
  // One step from a given state has exact integers and thus the tolerance of float32. From the second step on, the quantized state differs
  // in the last digits of float32, so that its integers sometimes differ by one: a scale of the state (1/127) times a weight (0.5).
  constexpr double kOneLevel = 5e-3;
  for (const QuantizedLayer& l : std::vector<QuantizedLayer>{{"one_step", 3, 1, 5, true, true},
                                                             {"one_step_wide", 9, 1, 70, true, true},
                                                             {"one_step_reduced", 4, 1, 33, false, true, false, true},
                                                             {"steps", 2, 5, 4},
                                                             {"states", 3, 4, 19, true, true},
                                                             {"reverse", 5, 4, 16, false, true, true},
                                                             {"reduced", 17, 3, 24, true, false, false, true},
                                                             {"no_batch", 0, 3, 4},
                                                             {"no_steps", 2, 0, 4, true, true}}) {
    DynamicQuantizedRecurrentAttrs a;
    a.reverse = l.reverse;
    a.saturation = l.reduced ? Saturation::kReduced : Saturation::kExact;
    const double tolerance = l.steps <= 1 ? 2e-5 : kOneLevel;
    cases.push_back({.name = "dynamic_quantized_lstm_" + l.name,
                     .build =
                         [=](CaseInputs& in) {
                           const Operands o = operands_of(in, l, 4);
                           const Value h0 = state_of(in, l, "h");
                           dynamic_quantized_lstm(o.x, o.weight, o.scale, o.bias, h0, state_of(in, l, "c"), a);
                         },
                     .kernel_tolerance = tolerance});
    cases.push_back({.name = "dynamic_quantized_gru_" + l.name,
                     .build =
                         [=](CaseInputs& in) {
                           const Operands o = operands_of(in, l, 3);
                           dynamic_quantized_gru(o.x, o.weight, o.scale, o.bias, state_of(in, l, "h"), a);
                         },
                     .kernel_tolerance = tolerance});
    for (const Nonlinearity nonlinearity : {Nonlinearity::kTanh, Nonlinearity::kRelu}) {
      DynamicQuantizedRnnAttrs r;
      r.reverse = a.reverse;
      r.saturation = a.saturation;
      r.nonlinearity = nonlinearity;
      cases.push_back({.name = cat("dynamic_quantized_rnn_", kNonlinearityNames[static_cast<size_t>(nonlinearity)], "_", l.name),
                       .build =
                           [=](CaseInputs& in) {
                             const Operands o = operands_of(in, l, 1);
                             dynamic_quantized_rnn(o.x, o.weight, o.scale, o.bias, state_of(in, l, "h"), r);
                           },
                       .kernel_tolerance = tolerance});
    }
  }
  // h = 0.5 and -0.25: scale 0.75 / 255, zero point 85; integers 255 and 0, that is 170 and -85 times 0.0029411765. The products 3 170 - 85
  // = 425 and 2 85 = 170, times the scale and 0.01: 0.0125 and 0.005; with x 1 and -1, relu.
  cases.push_back({.name = "dynamic_quantized_rnn_hand",
                   .build =
                       [](CaseInputs& in) {
                         DynamicQuantizedRnnAttrs a;
                         a.nonlinearity = Nonlinearity::kRelu;
                         const Value x = in.values({1, 1, 2}, {1, -1}, DType::kF32), weight = in.values({2, 2}, {3, 1, 0, -2}, DType::kI8),
                                     scale = in.values({2}, {0.01f, 0.01f}, DType::kF32);
                         dynamic_quantized_rnn(x, weight, scale, {}, in.values({1, 2}, {0.5, -0.25}, DType::kF32), a);
                       },
                   .expected = {1.0125, 0}});
  return cases;
}

}  // namespace galley::test
