#include "libcore/ops/quantized_recurrent.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kNoGradient = "integers have no gradient; use fake_quantize for training";
constexpr int64_t kMostProducts = ((int64_t{1} << 31) - 1) / (255 * 128);  // |h - zero_point| <= 255, |w| <= 128

/// Outputs y, h and, for an LSTM, c. Inputs x, weight, weight_scale, bias?, h0?, c0?.
std::vector<TensorType> infer(const OpContext& c, int64_t gates, int states) {
  const TensorType &x = c.in(0), &weight = c.in(1);
  GALLEY_CHECK(weight.dtype == DType::kI8 && weight.shape.rank() == 2 && weight.shape[0] == gates * weight.shape[1], "weight must be i8 [",
               gates, " H,H], not ", weight);
  const int64_t hidden = weight.shape[1];
  GALLEY_CHECK(hidden <= kMostProducts, "a sum of ", hidden, " products may exceed 32 bits; at most ", kMostProducts,
               " are supported: weight ", weight, "; keep this layer in float");
  GALLEY_CHECK(x.dtype == DType::kF32 && x.shape.rank() == 3 && x.shape[2] == gates * hidden, "x must be f32 [N,T,", gates * hidden,
               "] (the input's products for ", gates, " gates), not ", x, ": weight ", weight);
  const Shape columns{gates * hidden}, state{x.shape[0], hidden};
  GALLEY_CHECK(c.in(2).dtype == DType::kF32 && c.in(2).shape == columns, "weight_scale must be f32 ", columns, ", not ", c.in(2));
  if (c.has(3)) GALLEY_CHECK(c.in(3).dtype == DType::kF32 && c.in(3).shape == columns, "bias must be f32 ", columns, ", not ", c.in(3));
  for (int i = 0; i < states; ++i) {
    if (c.has(4 + i))
      GALLEY_CHECK(c.in(4 + i).dtype == DType::kF32 && c.in(4 + i).shape == state, i == 0 ? "h0" : "c0", " must be f32 ", state, ", not ",
                   c.in(4 + i));
  }
  TensorType y, last;
  y.shape = {x.shape[0], x.shape[1], hidden};
  y.names = tidy_names({std::string(dim_name(x, 0)), std::string(dim_name(x, 1)), ""});
  last.shape = state;
  std::vector<TensorType> types{y, last};
  if (states == 2) types.push_back(last);
  return types;
}

Cost cost(const OpContext& c) {
  return operand_cost(c, static_cast<double>(c.in(0).elements()) * (2.0 * static_cast<double>(c.in(1).shape[1]) + 10.0));
}

}  // namespace

void DynamicQuantizedRecurrentAttrs::options(OptionVisitor& v) {
  v.option({.name = "reverse", .doc = "from the last step to the first"}, reverse);
  v.choice({.name = "saturation", .doc = "reduced: two products always fit 16 bits"}, saturation, kSaturationNames);
}
void DynamicQuantizedRnnAttrs::options(OptionVisitor& v) {
  v.choice({.name = "nonlinearity", .doc = "tanh or relu"}, nonlinearity, kNonlinearityNames);
  v.option({.name = "reverse", .doc = "from the last step to the first"}, reverse);
  v.choice({.name = "saturation", .doc = "reduced: two products always fit 16 bits"}, saturation, kSaturationNames);
}

const OpDef& dynamic_quantized_lstm_op() {
  static const OpDef def{
      .name = "dynamic_quantized_lstm",
      .doc = "lstm without the product with its input; its state is quantized by its range at each step",
      .inputs = {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?"), "h0?", "c0?"},
      .outputs = {"y", "h", "c"},
      .make_attrs = make_options<DynamicQuantizedRecurrentAttrs>,
      .infer = [](const OpContext& c) { return infer(c, 4, 2); },
      .no_gradient = kNoGradient,
      .cost = cost,
      .work = WorkClass::kProduct,
      .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeads},
      .definition = definition::dynamic_quantized_lstm,
      .cases = {"dynamic_quantized_lstm:32x64x1024+1024x256@i8+1024", "dynamic_quantized_lstm:1x64x1024+1024x256@i8+1024"}};
  return def;
}
const OpDef& dynamic_quantized_gru_op() {
  static const OpDef def{.name = "dynamic_quantized_gru",
                         .doc = "gru without the product with its input; its state is quantized by its range at each step",
                         .inputs = {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?"), "h0?"},
                         .outputs = {"y", "h"},
                         .make_attrs = make_options<DynamicQuantizedRecurrentAttrs>,
                         .infer = [](const OpContext& c) { return infer(c, 3, 1); },
                         .no_gradient = kNoGradient,
                         .cost = cost,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeads},
                         .definition = definition::dynamic_quantized_gru,
                         .cases = {"dynamic_quantized_gru:32x64x768+768x256@i8+768"}};
  return def;
}
const OpDef& dynamic_quantized_rnn_op() {
  static const OpDef def{.name = "dynamic_quantized_rnn",
                         .doc = "rnn without the product with its input; its state is quantized by its range at each step",
                         .inputs = {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?"), "h0?"},
                         .outputs = {"y", "h"},
                         .make_attrs = make_options<DynamicQuantizedRnnAttrs>,
                         .infer = [](const OpContext& c) { return infer(c, 1, 1); },
                         .no_gradient = kNoGradient,
                         .cost = cost,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeads},
                         .definition = definition::dynamic_quantized_rnn,
                         .cases = {"dynamic_quantized_rnn:32x64x256+256x256@i8+256"}};
  return def;
}

OpTable quantized_recurrent_ops() { return {&dynamic_quantized_lstm_op(), &dynamic_quantized_gru_op(), &dynamic_quantized_rnn_op()}; }

QuantizedLstm dynamic_quantized_lstm(Value x, Value weight, Value weight_scale, Value bias, Value h0, Value c0,
                                     const DynamicQuantizedRecurrentAttrs& attrs) {
  const std::vector<Value> r = emit_all("dynamic_quantized_lstm", std::make_unique<DynamicQuantizedRecurrentAttrs>(attrs),
                                        std::vector<Value>{x, weight, weight_scale, bias, h0, c0});
  return {r[0], r[1], r[2]};
}
QuantizedRecurrent dynamic_quantized_gru(Value x, Value weight, Value weight_scale, Value bias, Value h0,
                                         const DynamicQuantizedRecurrentAttrs& attrs) {
  const std::vector<Value> r = emit_all("dynamic_quantized_gru", std::make_unique<DynamicQuantizedRecurrentAttrs>(attrs),
                                        std::vector<Value>{x, weight, weight_scale, bias, h0});
  return {r[0], r[1]};
}
QuantizedRecurrent dynamic_quantized_rnn(Value x, Value weight, Value weight_scale, Value bias, Value h0,
                                         const DynamicQuantizedRnnAttrs& attrs) {
  const std::vector<Value> r = emit_all("dynamic_quantized_rnn", std::make_unique<DynamicQuantizedRnnAttrs>(attrs),
                                        std::vector<Value>{x, weight, weight_scale, bias, h0});
  return {r[0], r[1]};
}

}  // namespace galley
