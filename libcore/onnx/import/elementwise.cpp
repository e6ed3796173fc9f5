// Imports element-wise functions: single ONNX operators by their rows, others here.

#include "libcore/ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "libcore/onnx/expression.h"
#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

/// An ONNX operator that equals one element-wise operator, from that operator's row.
struct Reading {
  const ElementwiseRow* row;
  OnnxExpression node;  // its attributes refer to the operator's options
};
const std::map<std::string_view, Reading>& readings() {
  static const std::map<std::string_view, Reading> all = [] {
    std::map<std::string_view, Reading> made;
    for (const ElementwiseRow& row : galley::elementwise_rows()) {
      const std::string_view text = row.formulas.front().onnx;
      OnnxExpression node = parse_onnx_expression(text);
      const std::string_view name = text.substr(0, node.name.size());
      if (node.stands_alone()) made[name] = {&row, std::move(node)};
      if (!row.onnx_reads.empty()) made[row.onnx_reads] = {&row, {}};
    }
    return made;
  }();
  return all;
}

/// A known number takes the dtype of the other operand.
void function_node(Call& c) {
  const Reading& reading = readings().at(c.node.op_type);
  std::unique_ptr<Options> attributes = reading.row->make_attrs != nullptr ? reading.row->make_attrs() : nullptr;
  for (const auto& [name, option] : reading.node.attributes)
    set_number_option(*attributes, option.name, c.real(name, number_option(*attributes, option.name)));
  std::vector<Value> inputs;
  for (int i = 0; i < reading.row->arity(); ++i) inputs.push_back(c.x(static_cast<size_t>(i)));
  c.set(emit_all(reading.row->name, std::move(attributes), inputs).front());
}

/// Imports an operator with several inputs as a chain of binary ones.
template <Value (*kFunction)(Value, Value)>
void folded(Call& c) {
  Value y = c.x(0);
  for (size_t i = 1; i < c.inputs(); ++i) y = kFunction(y, c.x(i));
  c.set(y);
}

/// The constant operand i, if the other operand is a float value that keeps its shape: x * scale + shift is one operator.
std::optional<double> number(const Call& c, size_t i) {
  const std::optional<double> known = c.scalar(i);
  if (!known || !std::isfinite(*known) || c.item(i).is_weight || c.item(1 - i).constant.defined()) return std::nullopt;
  const Value x = c.x(1 - i);
  return is_floating(x.dtype()) && c.constant(i)->shape().rank() <= x.shape().rank() ? known : std::nullopt;
}
void add_node(Call& c) {
  for (size_t i : {0u, 1u}) {
    if (const auto by = number(c, i)) return c.set(affine(c.x(1 - i), 1, *by));
  }
  c.set(add(c.x(0), c.x(1)));
}
void sub_node(Call& c) {
  if (const auto by = number(c, 1)) return c.set(affine(c.x(0), 1, -*by));
  if (const auto from = number(c, 0)) return c.set(affine(c.x(1), -1, *from));
  c.set(sub(c.x(0), c.x(1)));
}
void mul_node(Call& c) {
  for (size_t i : {0u, 1u}) {
    if (const auto by = number(c, i)) return c.set(affine(c.x(1 - i), *by));
  }
  if (c.node.inputs[0] == c.node.inputs[1] && is_floating(c.x(0).dtype())) return c.set(square(c.x(0)));
  c.set(mul(c.x(0), c.x(1)));
}
void div_node(Call& c) {
  const auto by = number(c, 1);
  if (by && *by != 0) return c.set(affine(c.x(0), 1 / *by));
  if (number(c, 0) == 1.0) return c.set(reciprocal(c.x(1)));
  c.set(div(c.x(0), c.x(1)));
}
void pow_node(Call& c) {
  const auto exponent = number(c, 1);
  if (!exponent) return c.set(power(c.x(0), cast(c.x(1), c.x(0).dtype())));
  c.set(*exponent == 2 ? square(c.x(0)) : *exponent == 0.5 ? sqrt(c.x(0)) : pow(c.x(0), *exponent));
}

/// Bounds are attributes before opset 11. Bounds that are not constant become maximum and minimum.
void clip(Call& c) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const Value x = c.x(0);
  const bool known = (!c.has(1) || c.scalar(1)) && (!c.has(2) || c.scalar(2));
  if (!known) {
    Value y = x;
    if (c.has(1)) y = maximum(y, c.x(1));
    if (c.has(2)) y = minimum(y, c.x(2));
    return c.set(y);
  }
  const double low = c.has(1) ? *c.scalar(1) : c.real("min", -kNone), high = c.has(2) ? *c.scalar(2) : c.real("max", kNone);
  if (!(low <= high)) return c.set(clamp(clamp(x, low, kNone), -kNone, high));  // low > high: the result is the upper bound everywhere
  const bool from_zero = low == 0 && is_floating(x.dtype());
  c.set(from_zero && high == 6 ? relu6(x) : from_zero && high == kNone ? relu(x) : clamp(x, low, high));
}
Value scaled_elu(Value x, double alpha) {
  std::unique_ptr<Options> attributes = find_op("elu").make_attrs();
  set_number_option(*attributes, "alpha", alpha);
  const Value inputs[] = {x};
  return emit_all("elu", std::move(attributes), inputs).front();
}
/// gamma (x above 0, else alpha (exp(x) - 1)).
void selu(Call& c) {
  constexpr double kAlpha = 1.67326319217681884765625, kGamma = 1.05070102214813232421875;  // the function's own, as f32
  const double alpha = c.real("alpha", kAlpha), gamma = c.real("gamma", kGamma);
  c.set(alpha == kAlpha && gamma == kGamma ? emit("selu", {c.x(0)}) : affine(scaled_elu(c.x(0), alpha), gamma));
}
void ceil_node(Call& c) { c.set(neg(emit("floor", {neg(c.x(0))}))); }
void hard_sigmoid(Call& c) {
  const double alpha = c.real("alpha", 0.2), beta = c.real("beta", 0.5);
  const Value x = c.x(0);
  c.set(std::fabs(alpha - 1.0 / 6) < 1e-6 && beta == 0.5 ? hardsigmoid(x) : clamp(affine(x, alpha, beta), 0, 1));
}
void gelu_node(Call& c) {
  const std::string form = c.text("approximate", "none");
  if (form != "none" && form != "tanh") c.refuse(cat("approximate is '", form, "', but must be none or tanh"));
  GeluAttrs attrs;
  attrs.approximate = form == "tanh" ? GeluApproximation::kTanh : GeluApproximation::kNone;
  c.set(gelu(c.x(0), attrs));
}

Value cast_to(const Call& c, Value x, DType dtype) {
  if (dtype == DType::kF64 || dtype == DType::kF16 || dtype == DType::kBF16)
    c.refuse(cat("it casts to ", dtype, ", but Galley computes in f32"), "export the model in float32");
  return cast(x, dtype);
}
void cast_node(Call& c) {
  c.integer("saturate", 1);
  const int64_t to = c.integer("to", 0);
  const OnnxType* type = find_onnx_type(static_cast<int32_t>(to < 0 || to > 1000 ? 0 : to));
  if (type == nullptr || !type->dtype)
    c.refuse(cat("it casts to ", type == nullptr ? std::string_view("an unknown type") : type->text, ", which Galley does not support"));
  c.set(cast_to(c, c.x(0), *type->dtype));
}
void cast_like(Call& c) {
  c.integer("saturate", 1);
  const Item& like = c.item(1);
  c.set(cast_to(c, c.x(0), like.value ? like.value.dtype() : like.constant.dtype()));
}

void where_node(Call& c) {
  const Value condition = c.x(0);
  if (condition.dtype() != DType::kBool) c.refuse(cat("its condition is ", condition.type(), ", but must be boolean"));
  c.set(where(condition, c.x(1), c.x(2)));
}

/// Skipped in inference; in training it draws its own random numbers. The ratio is an attribute before opset 12.
void dropout(Call& c) {
  c.find("seed");
  const double ratio = c.has(1) ? c.scalar(1).value_or(-1) : c.real("ratio", 0.5);
  GALLEY_CHECK_INPUT(ratio >= 0 && ratio <= 1, "its ratio must be a constant between 0 and 1");
  const bool trains = c.to.builder().training();
  if (c.has(2)) {
    const std::optional<double> mode = c.scalar(2);
    if ((!mode || *mode != 0) && ratio > 0 && !trains) c.refuse("it drops elements also in inference (training_mode)");
  }
  if (c.needs_output(1)) {
    if (trains) c.refuse("its mask is read by other nodes");
    const Value x = c.x(0);
    c.set(1, full(x.graph(), {.dtype = c.opset() < 10 ? x.dtype() : DType::kBool, .shape = x.shape()}, 1));
  }
  if (!trains || c.item(0).constant.defined()) return c.pass(0);
  c.set(c.to.builder().dropout("dropout", c.x(0), ratio));
}

// ---- logic

Value truth(const Call& c, bool value) { return c.scalar_value(DType::kBool, value ? 1 : 0); }
Value is_not(const Call& c, Value a) { return equal(a, truth(c, false)); }
Value either(const Call& c, Value a, Value b) { return where(a, truth(c, true), b); }
void check_bool(const Call& c, Value a) {
  if (a.dtype() != DType::kBool) c.refuse(cat("its input is ", a.type(), ", but must be boolean"));
}
void not_node(Call& c) {
  check_bool(c, c.x(0));
  c.set(is_not(c, c.x(0)));
}
template <Value (*kJoin)(const Call&, Value, Value)>
void logic(Call& c) {
  check_bool(c, c.x(0));
  check_bool(c, c.x(1));
  c.set(kJoin(c, c.x(0), c.x(1)));
}
Value both(const Call& c, Value a, Value b) { return where(a, b, truth(c, false)); }
Value one_of(const Call& c, Value a, Value b) { return where(a, is_not(c, b), b); }
/// Not computed by negation, because comparisons with NaN are all false.
template <Value (*kCompare)(Value, Value)>
void compare_or_equal(Call& c) {
  c.set(either(c, kCompare(c.x(0), c.x(1)), equal(c.x(0), c.x(1))));
}
void is_nan(Call& c) { c.set(is_not(c, equal(c.x(0), c.x(0)))); }
void is_infinite(Call& c) {
  const Value x = c.x(0);
  if (!is_floating(x.dtype())) c.refuse(cat("its input is ", x.type(), ", but must be floating-point"));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool up = c.integer("detect_positive", 1) != 0, down = c.integer("detect_negative", 1) != 0;
  const Value high = equal(x, c.scalar_value(x.dtype(), kInfinity)), low = equal(x, c.scalar_value(x.dtype(), -kInfinity));
  c.set(up && down ? either(c, high, low) : up ? high : down ? low : full(x.graph(), {.dtype = DType::kBool, .shape = x.shape()}, 0));
}

// ---- more functions

void thresholded_relu(Call& c) {
  const Value x = c.x(0);
  c.set(where(greater(x, c.scalar_value(x.dtype(), c.real("alpha", 1))), x, c.scalar_value(x.dtype(), 0)));
}
void shrink(Call& c) {
  const Value x = c.x(0);
  if (!is_floating(x.dtype())) c.refuse(cat("its input is ", x.type(), ", but must be floating-point"));
  const double bias = c.real("bias", 0), lambd = c.real("lambd", 0.5);
  const Value above = where(greater(x, c.scalar_value(x.dtype(), lambd)), affine(x, 1, -bias), c.scalar_value(x.dtype(), 0));
  c.set(where(less(x, c.scalar_value(x.dtype(), -lambd)), affine(x, 1, bias), above));
}
void tangent(Call& c) { c.set(div(sin(c.x(0)), cos(c.x(0)))); }
Value hyperbolic_cosine(Value x) { return affine(add(exp(x), exp(neg(x))), 0.5); }
void cosh_node(Call& c) { c.set(hyperbolic_cosine(c.x(0))); }
void sinh_node(Call& c) { c.set(mul(tanh(c.x(0)), hyperbolic_cosine(c.x(0)))); }  // avoids the cancellation of (exp(x) - exp(-x)) near 0
void mean_node(Call& c) {
  Value sum = c.x(0);
  for (size_t i = 1; i < c.inputs(); ++i) sum = add(sum, c.x(i));
  c.set(c.inputs() == 1 ? sum : affine(sum, 1 / static_cast<double>(c.inputs())));
}
void identity(Call& c) { c.pass(0); }

}  // namespace

MakeTable elementwise_rows() {
  MakeTable rows{{"HardSigmoid", hard_sigmoid},
                 {"Selu", selu},
                 {"Ceil", ceil_node},
                 {"Gelu", gelu_node},
                 {"Clip", clip},
                 {"Pow", pow_node},
                 {"Add", add_node},
                 {"Sub", sub_node},
                 {"Mul", mul_node},
                 {"Div", div_node},
                 {"Max", folded<maximum>},
                 {"Min", folded<minimum>},
                 {"Sum", folded<add>},
                 {"Where", where_node},
                 {"Cast", cast_node},
                 {"CastLike", cast_like},
                 {"Dropout", dropout},
                 {"Mean", mean_node},
                 {"Not", not_node},
                 {"And", logic<both>},
                 {"Or", logic<either>},
                 {"Xor", logic<one_of>},
                 {"LessOrEqual", compare_or_equal<less>},
                 {"GreaterOrEqual", compare_or_equal<greater>},
                 {"IsNaN", is_nan},
                 {"IsInf", is_infinite},
                 {"ThresholdedRelu", thresholded_relu},
                 {"Shrink", shrink},
                 {"Tan", tangent},
                 {"Cosh", cosh_node},
                 {"Sinh", sinh_node},
                 {"Identity", identity}};
  for (const auto& [name, reading] : readings()) {
    const bool known = std::any_of(rows.begin(), rows.end(), [name = name](const auto& row) { return row.first == name; });
    if (!known) rows.emplace_back(name, function_node);
  }
  return rows;
}

}  // namespace galley::onnx_import
