// Exports element-wise operators.

#include "libcore/ops/elementwise.h"

#include <cmath>

#include "libcore/onnx/export/functions.h"
#include "libcore/onnx/expression.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/quantize.h"

namespace galley::onnx_export {
namespace {

DType dtype_of(const NodeWriter& n) { return n.type(0).dtype; }

using Kind = OnnxExpression::Kind;

/// The element-wise function being exported: its inputs and attributes.
struct FormulaWriter {
  GraphWriter& to;
  const Names& inputs;
  const Options* attributes;
  DType dtype;

  double number(const OnnxExpression& e) const { return e.kind == Kind::kOption ? number_option(*attributes, e.name) : e.number; }
  /// Whether the operator multiplies or divides by an option of 1, or adds an option of 0.
  bool changes_nothing(const OnnxExpression& e) const {
    if (e.arguments.size() != 2 || e.arguments[1].kind != Kind::kOption) return false;
    const double value = number(e.arguments[1]);
    return e.name == "Add" ? value == 0 : (e.name == "Mul" || e.name == "Div") && value == 1;
  }
  std::string name(const OnnxExpression& e) const {
    switch (e.kind) {
      case Kind::kInput: return inputs[e.input];
      case Kind::kNumber:
      case Kind::kOption: {
        const double value = number(e);
        return std::isfinite(value) ? to.scalar(value, dtype) : std::string();  // an infinite bound of Clip is left out
      }
      case Kind::kOperator: break;
    }
    if (changes_nothing(e)) return name(e.arguments[0]);
    Names arguments;
    for (const OnnxExpression& argument : e.arguments) arguments.push_back(name(argument));
    Attributes attributes_of_node;
    for (const auto& [key, value] : e.attributes) attributes_of_node.push_back(attribute(key, number(value)));
    return to.add(e.name, std::move(arguments), std::move(attributes_of_node));
  }
};

/// Exports any element-wise function by the ONNX expression in its row.
Names function_node(const NodeWriter& n) {
  const Options* attributes = n.node.attributes.get();
  const Formula& formula = find_elementwise(n.node.op->name)->formula(attributes);
  const std::string result = FormulaWriter{n.to, n.inputs, attributes, dtype_of(n)}.name(parse_onnx_expression(formula.onnx));
  return {result == n.in(0) ? n.to.add("Identity", {result}) : result};
}

Names cast_node(const NodeWriter& n) {
  return {n.to.add("Cast", {n.in(0)}, {attribute("to", int64_t{onnx_type(n.attrs<CastAttrs>().dtype)})})};
}

Names quantize_node(const NodeWriter& n) { return {quantized(n.to, n.in(0), n.attrs<QuantizeAttrs>().params())}; }
Names dequantize_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<DequantizeAttrs>();
  return {dequantized(n.to, n.in(0), {.scale = attrs.scale, .zero_point = attrs.zero_point, .dtype = dtype_of(n)})};
}

}  // namespace

std::string activated(GraphWriter& w, const std::string& x, Activation activation) {
  if (activation == Activation::kNone) return x;
  const Names inputs{x};
  return FormulaWriter{w, inputs, nullptr, DType::kF32}.name(parse_onnx_expression(elementwise_row(activation).formulas.front().onnx));
}

std::string quantized(GraphWriter& w, const std::string& x, const QuantParams& map) {
  const int64_t low = map.dtype == DType::kU8 ? 0 : -128, high = map.dtype == DType::kU8 ? 255 : 127;
  const bool narrow = map.qmin != low || map.qmax != high;
  const std::string clipped =
      narrow ? w.add("Clip", {x, w.scalar(dequantize_value(map.qmin, map)), w.scalar(dequantize_value(map.qmax, map))}) : x;
  return w.add("QuantizeLinear", {clipped, w.scalar(map.scale), w.scalar(static_cast<double>(map.zero_point), map.dtype)});
}
std::string dequantized(GraphWriter& w, const std::string& q, const QuantParams& map) {
  return w.add("DequantizeLinear", {q, w.scalar(map.scale), w.scalar(static_cast<double>(map.zero_point), map.dtype)});
}

WriteTable elementwise_rows() {
  WriteTable rows{{"cast", cast_node}, {"quantize", quantize_node}, {"dequantize", dequantize_node}};
  for (const ElementwiseRow& row : galley::elementwise_rows()) rows.emplace_back(row.name, function_node);
  return rows;
}

}  // namespace galley::onnx_export
