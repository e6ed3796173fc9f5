// Cases of LSTM, GRU and plain recurrent layers and their backward.

#include "libcore/ops/recurrent.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct RecurrentLayer {
  std::string name;
  int64_t batch, steps, in, hidden;
  bool bias = true, states = false, reverse = false;
};

RecurrentWeights weights_of(CaseInputs& in, const RecurrentLayer& l, int64_t gates) {
  // As large as typical initial values, so that gates are neither all open nor all closed.
  const Fill fill{.low = -0.4, .high = 0.4};
  RecurrentWeights w;
  w.ih = in.weight({gates * l.hidden, l.in}, fill);
  w.hh = in.weight({gates * l.hidden, l.hidden}, fill);
  if (l.bias) w.bias_ih = in.weight({gates * l.hidden}, fill);
  if (l.bias) w.bias_hh = in.weight({gates * l.hidden}, fill);
  return w;
}

void add_recurrent_layers(std::vector<OpCase>& cases) {
  for (const RecurrentLayer& l :
       std::vector<RecurrentLayer>{{"plain", 2, 3, 5, 4},
                                   {"no_bias", 2, 3, 5, 4, false},
                                   {"states", 3, 4, 2, 5, true, true},
                                   {"reverse", 2, 4, 3, 4, true, true, true},
                                   {"one_step", 3, 1, 4, 3, true, true},
                                   {"one_step_from_zero", 3, 1, 4, 3},
                                   {"no_batch", 0, 3, 4, 2},
                                   {"no_steps", 2, 0, 4, 2, true, true},
                                   // For kernels: columns that are and are not multiples of panels, few rows (columns are divided among
                                   // threads), many rows (the batch is divided among threads), more rows than a block, long sums.
                                   {"one_row", 1, 5, 3, 16, true, true},
                                   {"few_rows", 5, 3, 37, 24, true, true, true},
                                   {"many_rows", 13, 2, 6, 19, true, true},
                                   {"blocks", 101, 2, 3, 8},
                                   {"long_sums", 1, 2, 200, 70}}) {
    const auto attrs = [l](bool save) {
      RecurrentAttrs a;
      a.reverse = l.reverse;
      a.save = save;
      return a;
    };
    for (const bool save : {true, false}) {
      const std::string suffix = save ? "" : "_inference";
      cases.push_back({.name = "lstm_" + l.name + suffix,
                       .build =
                           [=](CaseInputs& in) {
                             const Value x = in.real({l.batch, l.steps, l.in});
                             const RecurrentWeights w = weights_of(in, l, 4);
                             const Value h0 = l.states ? in.real({l.batch, l.hidden}) : Value();
                             lstm(x, w, h0, l.states ? in.real({l.batch, l.hidden}) : Value(), attrs(save));
                           },
                       .differentiable_outputs = 3,
                       .forward_only = !save});
      cases.push_back({.name = "gru_" + l.name + suffix,
                       .build =
                           [=](CaseInputs& in) {
                             const Value x = in.real({l.batch, l.steps, l.in});
                             const RecurrentWeights w = weights_of(in, l, 3);
                             gru(x, w, l.states ? in.real({l.batch, l.hidden}) : Value(), attrs(save));
                           },
                       .differentiable_outputs = 2,
                       .forward_only = !save});
    }
    for (const Nonlinearity nonlinearity : {Nonlinearity::kTanh, Nonlinearity::kRelu}) {
      // Among thousands of arguments, some are at the kink of relu.
      if (nonlinearity == Nonlinearity::kRelu && l.batch * l.steps * l.hidden > 100) continue;
      cases.push_back(
          {.name = cat("rnn_", kNonlinearityNames[static_cast<size_t>(nonlinearity)], "_", l.name), .build = [=](CaseInputs& in) {
             const Value x = in.real({l.batch, l.steps, l.in});
             const RecurrentWeights w = weights_of(in, l, 1);
             RnnAttrs a;
             a.reverse = l.reverse;
             a.nonlinearity = nonlinearity;
             rnn(x, w, l.states ? in.real({l.batch, l.hidden}) : Value(), a);
           }});
    }
  }
}

void add_hand_values(std::vector<OpCase>& cases) {
  // One feature, one unit, two steps, from the formulas.
  cases.push_back({.name = "lstm_hand",
                   .build =
                       [](CaseInputs& in) {
                         RecurrentWeights w;
                         const Value x = in.values({1, 2, 1}, {1, -2});
                         w.ih = in.values({4, 1}, {0.5, -0.25, 1, 2});
                         w.hh = in.values({4, 1}, {1, 0.5, -1, 0.25});
                         w.bias_ih = in.values({4}, {0.1, 0.2, 0.3, 0.4});
                         lstm(x, w);
                       },
                   .expected = {0.463258502, 0.000502041935},
                   .differentiable_outputs = 3});
  cases.push_back({.name = "gru_hand",
                   .build =
                       [](CaseInputs& in) {
                         RecurrentWeights w;
                         const Value x = in.values({1, 2, 1}, {1, -2});
                         w.ih = in.values({3, 1}, {0.5, -0.25, 1});
                         w.hh = in.values({3, 1}, {1, 0.5, -1});
                         w.bias_ih = in.values({3}, {0.1, 0.2, 0.05});
                         w.bias_hh = in.values({3}, {0, 0, 0.3});
                         gru(x, w, in.values({1, 1}, {0.5}));
                       },
                   .expected = {0.597358545, 0.175681425},
                   .differentiable_outputs = 2});
  // relu(0.5 + 0.125), then relu(1 + 0.125 + 2 * 0.625).
  cases.push_back({.name = "rnn_hand",
                   .build =
                       [](CaseInputs& in) {
                         RecurrentWeights w;
                         const Value x = in.values({1, 2, 1}, {1, 2});
                         w.ih = in.values({1, 1}, {0.5});
                         w.hh = in.values({1, 1}, {2});
                         w.bias_ih = in.values({1}, {0.25});
                         w.bias_hh = in.values({1}, {-0.125});
                         RnnAttrs a;
                         a.nonlinearity = Nonlinearity::kRelu;
                         rnn(x, w, {}, a);
                       },
                   .expected = {0.625, 2.375}});
}

}  // namespace

std::vector<OpCase> recurrent_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_recurrent_layers, add_hand_values}) add(cases);
  return cases;
}

}  // namespace galley::test
