#pragma once
// The table of element-wise functions. A function's formula is in elementwise_functions.h, everything else about it in its row in
// elementwise.cpp. From the row come its operator (and NAME_backward where it has a slope), the reference and the vector kernel, the table
// of an int8 look-up, the recipe's layer, the activation that products and norms take, and its form in ONNX files.

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/ops/attrs.h"

namespace galley {

/// The real options of a function's attributes, in their order.
using FunctionNumbers = std::array<double, 2>;

/// A formula, in double.
struct Formula {
  size_t function = 0;          // its position in Functions (elementwise_functions.h), by which back ends find their code
  int values = 1, numbers = 0;  // how many inputs and numbers it takes
  double (*value)(const double* inputs, const FunctionNumbers& numbers) = nullptr;
  /// The derivative at x, where the result is y; nullptr: none.
  double (*slope)(double x, double y, const FunctionNumbers& numbers) = nullptr;
  /// grad times the slope; `from` is x or y, whichever the slope reads.
  double (*backward)(double grad, double from, const FunctionNumbers& numbers) = nullptr;
  /// What an ONNX file says for it (onnx/expression.h): "Elu[alpha=$alpha](x)", where x (a, b, c where there are several) are the inputs
  /// and $NAME an option's value. An operator that stands alone is read as the function, too.
  std::string_view onnx;
};

enum class ElementTypes : uint8_t {
  kFloating,  // floating types
  kNumbers,   // integers too
};
enum class SlopeReads : uint8_t { kNothing, kInput, kOutput };

/// How a function's derivative is made.
struct Slope {
  SlopeReads reads = SlopeReads::kNothing;  // kNothing: `gradient` or `no_gradient` of the row
  int flops = 0;                            // an element of the backward operator
  std::string_view doc = "";                // its line
};

struct ElementwiseRow {
  std::string_view name;
  std::string_view doc;
  std::vector<Formula> formulas;  // one, or several among which the attributes choose
  ElementTypes types = ElementTypes::kFloating;
  int flops = 1;  // an element, at most 15; a transcendental function counts one
  Slope slope = {};
  std::unique_ptr<Options> (*make_attrs)() = nullptr;
  size_t (*formula_of)(const Options&) = nullptr;                // nullptr: the first
  std::vector<TensorType> (*infer)(const OpContext&) = nullptr;  // nullptr: by the number of inputs and `types`
  void (*gradient)(GradientBuilder&) = nullptr;                  // where no backward operator makes it
  std::string_view no_gradient = "";
  PrecisionRule precision = PrecisionRule::kFollow;
  QuantizeRule quantize = QuantizeRule::kTable;
  bool (*quantizable)(const OpContext&) = nullptr;  // of kCompute: as OpDef's
  void (*integer_form)(IntegerBuilder&) = nullptr;
  Activation activation = Activation::kNone;  // as which products and norms take its first formula
  std::string_view layer = "";                // the line of the recipe's layer of that name; "": no layer
  std::vector<std::string_view> cases = {};   // as OpDef's: where inputs of equal shapes do not do
  std::string_view onnx_reads = "";           // an operator of ONNX that is read as it, and written in another form: "Mish" (opset 18)

  int arity() const { return formulas.front().values; }
  /// The formula that these attributes (nullptr where there are none) choose.
  const Formula& formula(const Options* attributes) const { return formulas[formula_of != nullptr ? formula_of(*attributes) : 0]; }
};

std::span<const ElementwiseRow> elementwise_rows();
/// The row of an operator or, with `backward`, of its backward operator; nullptr: not of this table.
const ElementwiseRow* find_elementwise(std::string_view op, bool backward = false);
/// The row of a fused activation; kNone has none.
const ElementwiseRow& elementwise_row(Activation activation);

/// The values of the attributes' real options, in order.
FunctionNumbers function_numbers(const Options* attributes);

/// The value of the real option of that name; sets it. Throws InternalError where there is none.
double number_option(const Options& attributes, std::string_view name);
void set_number_option(Options& attributes, std::string_view name, double value);

/// As which activation another operator may take this node; nullopt: as none.
std::optional<Activation> activation_of(const Node& node);
/// The activation of x.
double activate(Activation activation, double x);

using ScalarFunction = std::function<double(double)>;
/// The function of an operator of QuantizeRule::kTable with its attributes.
ScalarFunction scalar_function(const OpDef& op, const Options* attributes);

}  // namespace galley
