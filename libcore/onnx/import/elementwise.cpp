// Element-wise functions: those that ONNX has as one operator by their rows, others here.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "libcore/onnx/import/import.h"
#include "libcore/onnx/expression.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

/// An operator of ONNX that is a function of ours, by the function's row.
struct Reading {
  const ElementwiseRow* row;
  OnnxExpression node;  // its attributes: names of ours
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

/// Both sides in one graph: a number that is known joins the other side's dtype as it is.
void function_node(Call& c) {
  const Reading& reading = readings().at(c.node.op_type);
  std::unique_ptr<Options> attributes = reading.row->make_attrs != nullptr ? reading.row->make_attrs() : nullptr;
  for (const auto& [name, option] : reading.node.attributes) set_number_option(*attributes, option.name, c.real(name, number_option(*attributes, option.name)));
  std::vector<Value> inputs;
  for (int i = 0; i < reading.row->arity(); ++i) inputs.push_back(c.x(static_cast<size_t>(i)));
  c.set(emit_all(reading.row->name, std::move(attributes), inputs).front());
}

/// Of several inputs.
template <Value (*kFunction)(Value, Value)>
void folded(Call& c) {
  Value y = c.x(0);
  for (size_t i = 1; i < c.inputs(); ++i) y = kFunction(y, c.x(i));
  c.set(y);
}

/// The number on side i, where the other side is a value of floats that keeps its shape: x * scale + shift is one operator.
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
  if (!exponent) return c.set(power(c.x(0), c.x(1)));
  c.set(*exponent == 2 ? square(c.x(0)) : *exponent == 0.5 ? sqrt(c.x(0)) : pow(c.x(0), *exponent));
}

void clip(Call& c) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const auto bound = [&](size_t i, double none) {
    if (!c.has(i)) return none;
    const std::optional<double> known = c.scalar(i);
    GALLEY_CHECK_INPUT(known.has_value(), "its bounds must be known before the model runs");
    return *known;
  };
  const double low = bound(1, -kNone), high = bound(2, kNone);
  GALLEY_CHECK_INPUT(low <= high, "its bounds are ", low, " and ", high);
  const Value x = c.x(0);
  const bool from_zero = low == 0 && is_floating(x.dtype());
  c.set(from_zero && high == 6 ? relu6(x) : from_zero && high == kNone ? relu(x) : clamp(x, low, high));
}
Value scaled_elu(Value x, double alpha) {
  std::unique_ptr<Options> attributes = find_op("elu").make_attrs();
  set_number_option(*attributes, "alpha", alpha);
  const Value inputs[] = {x};
  return emit_all("elu", std::move(attributes), inputs).front();
}
/// max(0, x) + min(0, alpha (exp(x / alpha) - 1)).
void celu(Call& c) {
  const double alpha = c.real("alpha", 1);
  if (alpha <= 0) c.refuse(cat("alpha is ", alpha, ", it must be above 0"));
  c.set(alpha == 1 ? scaled_elu(c.x(0), 1) : affine(scaled_elu(affine(c.x(0), 1 / alpha), 1), alpha));
}
/// gamma (x above 0, else alpha (exp(x) - 1)).
void selu(Call& c) {
  const double alpha = c.real("alpha", 1.67326319217681884765625), gamma = c.real("gamma", 1.05070102214813232421875);
  c.set(affine(scaled_elu(c.x(0), alpha), gamma));
}
void ceil_node(Call& c) { c.set(neg(emit("floor", {neg(c.x(0))}))); }
void hard_sigmoid(Call& c) {
  const double alpha = c.real("alpha", 0.2), beta = c.real("beta", 0.5);
  const Value x = c.x(0);
  c.set(std::fabs(alpha - 1.0 / 6) < 1e-6 && beta == 0.5 ? hardsigmoid(x) : clamp(affine(x, alpha, beta), 0, 1));
}
void gelu_node(Call& c) {
  const std::string form = c.text("approximate", "none");
  if (form != "none" && form != "tanh") c.refuse(cat("approximate is ", form));
  GeluAttrs attrs;
  attrs.approximate = form == "tanh" ? GeluApproximation::kTanh : GeluApproximation::kNone;
  c.set(gelu(c.x(0), attrs));
}

void cast_node(Call& c) {
  c.integer("saturate", 1);
  const int64_t to = c.integer("to", 0);
  const OnnxType* type = find_onnx_type(static_cast<int32_t>(to < 0 || to > 1000 ? 0 : to));
  const bool known = type != nullptr && type->dtype && type->dtype != DType::kF64 && type->dtype != DType::kF16 && type->dtype != DType::kBF16;
  if (!known) c.refuse(cat("a cast to ", type == nullptr ? std::string_view("?") : type->text, ": Galley computes in f32"), "export the model in float32");
  c.set(cast(c.x(0), *type->dtype));
}

void where_node(Call& c) {
  const Value condition = c.x(0);
  if (condition.dtype() != DType::kBool) c.refuse(cat("the condition is ", condition.type(), ", a boolean is wanted"));
  c.set(where(condition, c.x(1), c.x(2)));
}

/// Left out of inference; in training its own random numbers.
void dropout(Call& c) {
  c.find("seed");
  if (c.wants_output(1)) c.refuse("its mask is read by other nodes");
  const double ratio = c.has(1) ? c.scalar(1).value_or(-1) : 0.5;
  GALLEY_CHECK_INPUT(ratio >= 0 && ratio <= 1, "its ratio is not known, or not in 0..1");
  if (!c.to.builder().training() || c.item(0).constant.defined()) return c.pass(0);
  c.set(c.to.builder().dropout("dropout", c.x(0), ratio));
}
void identity(Call& c) { c.pass(0); }

}  // namespace

MakeTable elementwise_rows() {
  MakeTable rows{{"HardSigmoid", hard_sigmoid},
                 {"Celu", celu},
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
                 {"Dropout", dropout},
                 {"Identity", identity}};
  for (const auto& [name, reading] : readings()) {
    const bool known = std::any_of(rows.begin(), rows.end(), [name = name](const auto& row) { return row.first == name; });
    if (!known) rows.emplace_back(name, function_node);
  }
  return rows;
}

}  // namespace galley::onnx_import
