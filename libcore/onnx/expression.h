#pragma once
// Functions of element-wise operators as ONNX files say them: "Mul(x, Sigmoid(x))", "Elu[alpha=$alpha](x)". The grammar:
//   expression = "x" | "a" | "b" | "c" (inputs; x is a) | number | "$" option | operator [attributes] "(" expression {"," expression} ")"
//   attributes = "[" name "=" (number | "$" option) {"," ...} "]"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

struct OnnxExpression {
  enum class Kind : uint8_t { kInput, kNumber, kOption, kOperator };
  Kind kind = Kind::kInput;
  size_t input = 0;
  double number = 0;
  std::string name;  // of the option or operator
  std::vector<std::pair<std::string, OnnxExpression>> attributes;
  std::vector<OnnxExpression> arguments;

  /// One operator of the inputs themselves, in order, whose attributes are all options: reading that operator gives the function.
  bool stands_alone() const;

  // Defined where the type is complete: clang does not take a list of pairs of it before.
  OnnxExpression();
  OnnxExpression(const OnnxExpression&);
  OnnxExpression(OnnxExpression&&) noexcept;
  OnnxExpression& operator=(const OnnxExpression&);
  OnnxExpression& operator=(OnnxExpression&&) noexcept;
  ~OnnxExpression();
};

/// Throws InternalError where the text is not of the grammar: it comes from a table of ours.
OnnxExpression parse_onnx_expression(std::string_view text);

}  // namespace galley
