#pragma once
// ONNX forms of element-wise operators: "Mul(x, Sigmoid(x))", "Elu[alpha=$alpha](x)". The grammar:
//   expression = "x" | "a" | "b" | "c" (inputs; x is a) | number | "$" option | operator [attributes] "(" expression {"," expression} ")"
//   attributes = "[" name "=" (number | "$" option) {"," ...} "]"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// A node of the expression tree.
struct OnnxExpression {
  enum class Kind : uint8_t { kInput, kNumber, kOption, kOperator };
  Kind kind = Kind::kInput;
  size_t input = 0;
  double number = 0;
  std::string name;  // of the option or operator
  std::vector<std::pair<std::string, OnnxExpression>> attributes;
  std::vector<OnnxExpression> arguments;

  /// Whether it is a single operator on the inputs in order whose attributes are all options, so that importing that operator gives the
  /// function.
  bool stands_alone() const;

  // Defined in the .cpp file, where the type is complete: clang does not accept a vector of pairs of it earlier.
  OnnxExpression();
  OnnxExpression(const OnnxExpression&);
  OnnxExpression(OnnxExpression&&) noexcept;
  OnnxExpression& operator=(const OnnxExpression&);
  OnnxExpression& operator=(OnnxExpression&&) noexcept;
  ~OnnxExpression();
};

/// Throws InternalError if the text does not match the grammar, because it comes from a table in Galley.
OnnxExpression parse_onnx_expression(std::string_view text);

}  // namespace galley
