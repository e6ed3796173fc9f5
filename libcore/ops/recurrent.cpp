#include "libcore/ops/recurrent.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/quantized_recurrent.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

// ---- shapes

struct Sizes {
  int64_t batch, steps, in, hidden;
};

TensorType typed(DType dtype, Shape shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = std::move(shape);
  return type;
}

void check_state(const OpContext& c, int input, std::string_view name, const Sizes& s) {
  if (!c.has(input)) return;
  GALLEY_CHECK(c.in(input).dtype == c.in(0).dtype && c.in(input).shape == Shape({s.batch, s.hidden}), name, " must be ", c.in(0).dtype,
               " [", s.batch, ",", s.hidden, "] (batch, hidden size), not ", c.in(input));
}

/// Checks the inputs x, weight_ih, weight_hh, bias_ih?, bias_hh?, which the states follow.
Sizes check_recurrent(const OpContext& c, int64_t gates) {
  const TensorType &x = c.in(0), &ih = c.in(1), &hh = c.in(2);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 3, "x must be [N,T,C] (batch, steps, features), not ", x);
  GALLEY_CHECK(hh.dtype == x.dtype && hh.shape.rank() == 2 && hh.shape[0] == gates * hh.shape[1], "weight_hh must be ", x.dtype, " [",
               gates, " H,H], not ", hh);
  const Sizes s{x.shape[0], x.shape[1], x.shape[2], hh.shape[1]};
  GALLEY_CHECK(ih.dtype == x.dtype && ih.shape == Shape({gates * s.hidden, s.in}), "weight_ih must be ", x.dtype, " [", gates * s.hidden,
               ",", s.in, "] (", gates, " x hidden size, features of x), not ", ih, ": x ", x, ", weight_hh ", hh);
  for (const int bias : {3, 4}) {
    if (!c.has(bias)) continue;
    GALLEY_CHECK(c.in(bias).dtype == x.dtype && c.in(bias).shape == Shape({gates * s.hidden}), bias == 3 ? "bias_ih" : "bias_hh",
                 " must be ", x.dtype, " [", gates * s.hidden, "], not ", c.in(bias));
  }
  return s;
}

/// The types of y [N,T,H], with x's names of batch and steps, and of the state after the last step.
std::vector<TensorType> sequence_and_state(const OpContext& c, const Sizes& s) {
  TensorType y = typed(c.in(0).dtype, {s.batch, s.steps, s.hidden});
  y.names = tidy_names({std::string(dim_name(c.in(0), 0)), std::string(dim_name(c.in(0), 1)), ""});
  return {std::move(y), typed(c.in(0).dtype, {s.batch, s.hidden})};
}

std::vector<TensorType> infer_lstm(const OpContext& c) {
  const Sizes s = check_recurrent(c, 4);
  check_state(c, 5, "h0", s);
  check_state(c, 6, "c0", s);
  GALLEY_CHECK(c.has(5) == c.has(6), "h0 and c0 must be given together");
  std::vector<TensorType> types = sequence_and_state(c, s);
  types.push_back(types[1]);
  const bool save = c.attrs<RecurrentAttrs>().save;
  types.push_back(typed(c.in(0).dtype, save ? Shape{s.batch, s.steps, 4 * s.hidden} : Shape{0}));
  types.push_back(typed(c.in(0).dtype, save ? Shape{s.batch, s.steps, s.hidden} : Shape{0}));
  return types;
}

std::vector<TensorType> infer_gru(const OpContext& c) {
  const Sizes s = check_recurrent(c, 3);
  check_state(c, 5, "h0", s);
  std::vector<TensorType> types = sequence_and_state(c, s);
  types.push_back(typed(c.in(0).dtype, c.attrs<RecurrentAttrs>().save ? Shape{s.batch, s.steps, 4 * s.hidden} : Shape{0}));
  return types;
}

std::vector<TensorType> infer_rnn(const OpContext& c) {
  const Sizes s = check_recurrent(c, 1);
  check_state(c, 5, "h0", s);
  return sequence_and_state(c, s);
}

/// Checks the inputs of a backward operator: gradients of y and of the `states` final states, in this order, and one saved array [N,T,width
/// H].
Sizes check_backward(const OpContext& c, int states, int saved, int64_t width, int weight, int64_t gates) {
  const TensorType &save = c.in(saved), &hh = c.in(weight);
  check_floating(save, "the saved array");
  GALLEY_CHECK(hh.dtype == save.dtype && hh.shape.rank() == 2 && hh.shape[0] == gates * hh.shape[1], "weight_hh must be ", save.dtype, " [",
               gates, " H,H], not ", hh);
  GALLEY_CHECK(save.shape.rank() == 3 && save.shape[2] == width * hh.shape[1], "the saved array must be [N,T,", width * hh.shape[1],
               "], not ", save);
  const Sizes s{save.shape[0], save.shape[1], 0, hh.shape[1]};
  const auto check = [&](int input, const Shape& expected, std::string_view name) {
    if (c.has(input))
      GALLEY_CHECK(c.in(input).dtype == save.dtype && c.in(input).shape == expected, name, " must be ", save.dtype, " ", expected, ", not ",
                   c.in(input));
  };
  check(0, {s.batch, s.steps, s.hidden}, "grad_y");
  for (int i = 1; i <= states; ++i) check(i, {s.batch, s.hidden}, i == 1 ? "grad_h" : "grad_c");
  return s;
}

std::vector<TensorType> infer_lstm_backward(const OpContext& c) {
  const Sizes s = check_backward(c, 2, 3, 4, 5, 4);
  GALLEY_CHECK(c.in(4).shape == Shape({s.batch, s.steps, s.hidden}), "cells must be [", s.batch, ",", s.steps, ",", s.hidden, "], not ",
               c.in(4));
  const TensorType state = typed(c.in(3).dtype, {s.batch, s.hidden});
  return {typed(c.in(3).dtype, c.in(3).shape), state, state};
}
std::vector<TensorType> infer_gru_backward(const OpContext& c) {
  const Sizes s = check_backward(c, 1, 2, 4, 4, 3);
  GALLEY_CHECK(c.in(3).shape == Shape({s.batch, s.steps, s.hidden}), "y must be [", s.batch, ",", s.steps, ",", s.hidden, "], not ",
               c.in(3));
  const TensorType gates = typed(c.in(2).dtype, {s.batch, s.steps, 3 * s.hidden});
  return {gates, gates, typed(c.in(2).dtype, {s.batch, s.hidden})};
}
std::vector<TensorType> infer_rnn_backward(const OpContext& c) {
  const Sizes s = check_backward(c, 1, 2, 1, 3, 1);
  return {typed(c.in(2).dtype, c.in(2).shape), typed(c.in(2).dtype, {s.batch, s.hidden})};
}

// ---- gradients

/// [N,T,F] -> [N T,F].
Value rows(Value x) { return reshape(x, Shape{x.shape()[0] * x.shape()[1], x.shape()[2]}); }

/// h before each step: y shifted by one step, with h0 or zeros before the first.
Value states_before(Value y, Value h0, bool reverse) {
  const int64_t batch = y.shape()[0], steps = y.shape()[1], hidden = y.shape()[2];
  const Value first = h0 ? reshape(h0, Shape{batch, 1, hidden}) : full(y.graph(), typed(y.dtype(), {batch, 1, hidden}), 0);
  if (steps == 1) return first;
  const Value others = reverse ? slice(y, 1, 1) : slice(y, 1, 0, steps - 1);
  return reverse ? concat({others, first}, 1) : concat({first, others}, 1);
}

/// Sets the gradients of x, weights and biases (inputs 0 to 4), given those of W_ih x + b_ih and of W_hh h + b_hh.
void set_products(GradientBuilder& g, Value d_input, Value d_hidden, Value h0, bool reverse) {
  if (g.in(0).shape()[1] == 0) {  // without steps, nothing depends on them
    for (size_t i = 0; i < 5; ++i) {
      if (g.in(i) && g.wants(i)) g.set(i, full(d_input.graph(), typed(g.in(i).dtype(), g.in(i).shape()), 0));
    }
    return;
  }
  if (g.wants(0)) g.set(0, reshape(matmul(rows(d_input), g.in(1)), g.in(0).shape()));
  if (g.wants(1)) g.set(1, matmul(rows(d_input), rows(g.in(0)), {true, false}));
  if (g.wants(2)) g.set(2, matmul(rows(d_hidden), rows(states_before(g.out(0), h0, reverse)), {true, false}));
  const bool ih = g.in(3) && g.wants(3), hh = g.in(4) && g.wants(4), alike = d_input == d_hidden;
  const Value of_input = ih || (hh && alike) ? sum(rows(d_input), {0}) : Value();
  if (ih) g.set(3, of_input);
  if (hh) g.set(4, alike ? of_input : sum(rows(d_hidden), {0}));
}

void lstm_gradient(GradientBuilder& g) {
  const auto& attrs = g.attrs<RecurrentAttrs>();
  GALLEY_ASSERT(attrs.save, "an lstm with save=false has no gradient");
  RecurrentBackwardAttrs back;
  back.reverse = attrs.reverse;
  const std::vector<Value> d = lstm_backward(g.grad(0), g.grad(1), g.grad(2), g.out(3), g.out(4), g.in(2), g.in(6), back);
  set_products(g, d[0], d[0], g.in(5), attrs.reverse);
  if (g.in(5) && g.wants(5)) g.set(5, d[1]);
  if (g.in(6) && g.wants(6)) g.set(6, d[2]);
}

void gru_gradient(GradientBuilder& g) {
  const auto& attrs = g.attrs<RecurrentAttrs>();
  GALLEY_ASSERT(attrs.save, "a gru with save=false has no gradient");
  RecurrentBackwardAttrs back;
  back.reverse = attrs.reverse;
  const std::vector<Value> d = gru_backward(g.grad(0), g.grad(1), g.out(2), g.out(0), g.in(2), g.in(5), back);
  set_products(g, d[0], d[1], g.in(5), attrs.reverse);
  if (g.in(5) && g.wants(5)) g.set(5, d[2]);
}

void rnn_gradient(GradientBuilder& g) {
  const auto& attrs = g.attrs<RnnAttrs>();
  const std::vector<Value> d = rnn_backward(g.grad(0), g.grad(1), g.out(0), g.in(2), attrs);
  set_products(g, d[0], d[0], g.in(5), attrs.reverse);
  if (g.in(5) && g.wants(5)) g.set(5, d[1]);
}

/// The products with x and h, and 10 flops per gate for gates and state.
Cost cost_forward(const OpContext& c) {
  const double rows = static_cast<double>(c.in(0).shape[0] * c.in(0).shape[1]), width = static_cast<double>(c.in(2).shape[0]);
  return operand_cost(c, rows * width * (2.0 * static_cast<double>(c.in(0).shape[2] + c.in(2).shape[1]) + 10.0));
}
/// The product that propagates the gradient to the previous step.
template <int kWeight>
Cost cost_backward(const OpContext& c) {
  const TensorType& d = c.out(0);
  return operand_cost(c, static_cast<double>(d.elements()) * (2.0 * static_cast<double>(c.in(kWeight).shape[1]) + 10.0));
}

}  // namespace

void RecurrentAttrs::options(OptionVisitor& v) {
  v.option({.name = "reverse", .doc = "from the last step to the first"}, reverse);
  v.option({.name = "save", .doc = "saves the values that the backward operator needs"}, save);
}
void RecurrentBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "reverse", .doc = "the forward operator ran from the last step to the first"}, reverse);
}
void RnnAttrs::options(OptionVisitor& v) {
  v.choice({.name = "nonlinearity", .doc = "tanh or relu"}, nonlinearity, kNonlinearityNames);
  v.option({.name = "reverse", .doc = "from the last step to the first"}, reverse);
}

namespace {
/// W_ih x + b_ih for all steps.
Value gates_by_batch(const IntegerBuilder& b) {
  DynamicQuantizedLinearAttrs attrs;
  attrs.saturation = saturation_of(b.weight(0));
  return dynamic_quantized_linear(b.in(0), b.weight(0).values, b.weight(0).scale, b.in(3), attrs);
}
DynamicQuantizedRecurrentAttrs recurrent_by_batch(const IntegerBuilder& b) {
  DynamicQuantizedRecurrentAttrs attrs;
  attrs.reverse = b.attrs<RecurrentAttrs>().reverse;
  attrs.saturation = saturation_of(b.weight(1));
  return attrs;
}
void lstm_by_batch(IntegerBuilder& b) {
  const Value gates = gates_by_batch(b);
  const QuantizedLstm made =
      dynamic_quantized_lstm(gates, b.weight(1).values, b.weight(1).scale, b.in(4), b.in(5), b.in(6), recurrent_by_batch(b));
  b.set(0, made.y);
  b.set(1, made.h);
  b.set(2, made.c);
}
void gru_by_batch(IntegerBuilder& b) {
  const Value gates = gates_by_batch(b);
  const QuantizedRecurrent made =
      dynamic_quantized_gru(gates, b.weight(1).values, b.weight(1).scale, b.in(4), b.in(5), recurrent_by_batch(b));
  b.set(0, made.y);
  b.set(1, made.h);
}
void rnn_by_batch(IntegerBuilder& b) {
  const Value gates = gates_by_batch(b);
  DynamicQuantizedRnnAttrs attrs;
  attrs.nonlinearity = b.attrs<RnnAttrs>().nonlinearity;
  attrs.reverse = b.attrs<RnnAttrs>().reverse;
  attrs.saturation = saturation_of(b.weight(1));
  const QuantizedRecurrent made = dynamic_quantized_rnn(gates, b.weight(1).values, b.weight(1).scale, b.in(4), b.in(5), attrs);
  b.set(0, made.y);
  b.set(1, made.h);
}
}  // namespace

const OpDef& lstm_op() {
  static const OpDef def{.name = "lstm",
                         .doc = "one layer and direction of an LSTM over a sequence (Hochreiter, Schmidhuber 1997; torch.nn.LSTM)",
                         .inputs = {"x", Port::weight("weight_ih"), Port::weight("weight_hh"), Port::statistics("bias_ih?"),
                                    Port::statistics("bias_hh?"), "h0?", "c0?"},
                         .outputs = {"y", "h", "c", "gates", "cells"},
                         .make_attrs = make_options<RecurrentAttrs>,
                         .infer = infer_lstm,
                         .gradient = lstm_gradient,
                         .cost = cost_forward,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeadsParameters},
                         .precision = PrecisionRule::kKeepF32,
                         .quantize = QuantizeRule::kRecurrent,
                         .definition = definition::lstm,
                         .dynamic_form = lstm_by_batch,
                         .cases = {"lstm:32x64x256+1024x256+1024x256+1024+1024", "lstm:1x64x256+1024x256+1024x256+1024+1024:save=false"}};
  return def;
}
const OpDef& lstm_backward_op() {
  static const OpDef def{.name = "lstm_backward",
                         .doc = "gradients of lstm's gates and initial state",
                         .inputs = {"grad_y?", "grad_h?", "grad_c?", "gates", "cells", Port::weight("weight_hh"), "c0?"},
                         .outputs = {"dgates", "dh0", "dc0"},
                         .make_attrs = make_options<RecurrentBackwardAttrs>,
                         .infer = infer_lstm_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward<5>,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .may_reuse = {{0, 3}},
                         .definition = definition::lstm_backward,
                         .cases = {"lstm_backward:32x64x256+-+-+32x64x1024+32x64x256+1024x256"}};
  return def;
}
const OpDef& gru_op() {
  static const OpDef def{.name = "gru",
                         .doc = "one layer and direction of a GRU over a sequence (Cho et al. 2014; torch.nn.GRU)",
                         .inputs = {"x", Port::weight("weight_ih"), Port::weight("weight_hh"), Port::statistics("bias_ih?"),
                                    Port::statistics("bias_hh?"), "h0?"},
                         .outputs = {"y", "h", "gates"},
                         .make_attrs = make_options<RecurrentAttrs>,
                         .infer = infer_gru,
                         .gradient = gru_gradient,
                         .cost = cost_forward,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeadsParameters},
                         .precision = PrecisionRule::kKeepF32,
                         .quantize = QuantizeRule::kRecurrent,
                         .definition = definition::gru,
                         .dynamic_form = gru_by_batch,
                         .cases = {"gru:32x64x256+768x256+768x256+768+768"}};
  return def;
}
const OpDef& gru_backward_op() {
  static const OpDef def{.name = "gru_backward",
                         .doc = "gradients of gru's products and initial state",
                         .inputs = {"grad_y?", "grad_h?", "gates", "y", Port::weight("weight_hh"), "h0?"},
                         .outputs = {"dinput", "dhidden", "dh0"},
                         .make_attrs = make_options<RecurrentBackwardAttrs>,
                         .infer = infer_gru_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward<4>,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::gru_backward,
                         .cases = {"gru_backward:32x64x256+-+32x64x1024+32x64x256+768x256"}};
  return def;
}
const OpDef& rnn_op() {
  static const OpDef def{.name = "rnn",
                         .doc = "one layer and direction of a plain recurrent network over a sequence (Elman 1990; torch.nn.RNN)",
                         .inputs = {"x", Port::weight("weight_ih"), Port::weight("weight_hh"), Port::statistics("bias_ih?"),
                                    Port::statistics("bias_hh?"), "h0?"},
                         .outputs = {"y", "h"},
                         .make_attrs = make_options<RnnAttrs>,
                         .infer = infer_rnn,
                         .gradient = rnn_gradient,
                         .cost = cost_forward,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .quantize = QuantizeRule::kRecurrent,
                         .definition = definition::rnn,
                         .dynamic_form = rnn_by_batch,
                         .cases = {"rnn:32x64x256+256x256+256x256+256+256"}};
  return def;
}
const OpDef& rnn_backward_op() {
  static const OpDef def{.name = "rnn_backward",
                         .doc = "gradients of rnn's arguments and initial state",
                         .inputs = {"grad_y?", "grad_h?", "y", Port::weight("weight_hh")},
                         .outputs = {"dinput", "dh0"},
                         .make_attrs = make_options<RnnAttrs>,
                         .infer = infer_rnn_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost_backward<3>,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::rnn_backward,
                         .cases = {"rnn_backward:32x64x256+-+32x64x256+256x256"}};
  return def;
}

OpTable recurrent_ops() { return {&lstm_op(), &lstm_backward_op(), &gru_op(), &gru_backward_op(), &rnn_op(), &rnn_backward_op()}; }

Lstm lstm(Value x, const RecurrentWeights& w, Value h0, Value c0, const RecurrentAttrs& attrs) {
  const std::vector<Value> r =
      emit_all("lstm", std::make_unique<RecurrentAttrs>(attrs), std::vector<Value>{x, w.ih, w.hh, w.bias_ih, w.bias_hh, h0, c0});
  return {r[0], r[1], r[2], r[3], r[4]};
}
std::vector<Value> lstm_backward(Value grad_y, Value grad_h, Value grad_c, Value gates, Value cells, Value weight_hh, Value c0,
                                 const RecurrentBackwardAttrs& attrs) {
  return emit_all("lstm_backward", std::make_unique<RecurrentBackwardAttrs>(attrs),
                  std::vector<Value>{grad_y, grad_h, grad_c, gates, cells, weight_hh, c0});
}
Gru gru(Value x, const RecurrentWeights& w, Value h0, const RecurrentAttrs& attrs) {
  const std::vector<Value> r =
      emit_all("gru", std::make_unique<RecurrentAttrs>(attrs), std::vector<Value>{x, w.ih, w.hh, w.bias_ih, w.bias_hh, h0});
  return {r[0], r[1], r[2]};
}
std::vector<Value> gru_backward(Value grad_y, Value grad_h, Value gates, Value y, Value weight_hh, Value h0,
                                const RecurrentBackwardAttrs& attrs) {
  return emit_all("gru_backward", std::make_unique<RecurrentBackwardAttrs>(attrs),
                  std::vector<Value>{grad_y, grad_h, gates, y, weight_hh, h0});
}
Rnn rnn(Value x, const RecurrentWeights& w, Value h0, const RnnAttrs& attrs) {
  const std::vector<Value> r =
      emit_all("rnn", std::make_unique<RnnAttrs>(attrs), std::vector<Value>{x, w.ih, w.hh, w.bias_ih, w.bias_hh, h0});
  return {r[0], r[1]};
}
std::vector<Value> rnn_backward(Value grad_y, Value grad_h, Value y, Value weight_hh, const RnnAttrs& attrs) {
  return emit_all("rnn_backward", std::make_unique<RnnAttrs>(attrs), std::vector<Value>{grad_y, grad_h, y, weight_hh});
}

}  // namespace galley
