#pragma once
// The table of element-wise functions. The formula of a function is in elementwise_functions.h, all else in its row in elementwise.cpp.
// The row gives its operator (and NAME_backward if it has a slope), the reference and vector kernels, the table of an int8 look-up, the
// layer in recipes, the activation that products and norms can apply, and its form in ONNX files.

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

/// The values of the real options of a function's attributes, in order.
using FunctionNumbers = std::array<double, 2>;

/// A formula, in double.
struct Formula {
  size_t function = 0;          // its position in Functions (elementwise_functions.h): the index of a back end's code for it
  int values = 1, numbers = 0;  // number of inputs, and of options
  double (*value)(const double* inputs, const FunctionNumbers& numbers) = nullptr;
  /// The derivative at x, where y is the value at x; nullptr: none.
  double (*slope)(double x, double y, const FunctionNumbers& numbers) = nullptr;
  /// grad times the slope; `from` is x or y, as SlopeReads says.
  double (*backward)(double grad, double from, const FunctionNumbers& numbers) = nullptr;
  /// Its form in ONNX files (onnx/expression.h): "Elu[alpha=$alpha](x)", where x (or a, b, c) are the inputs and $NAME is the value of an
  /// option. A form of one operator is also used to read files.
  std::string_view onnx;
};

enum class ElementTypes : uint8_t {
  kFloating,  // floating types
  kNumbers,   // integers too
};
enum class SlopeReads : uint8_t { kNothing, kInput, kOutput };

/// How the derivative of a function is computed.
struct Slope {
  SlopeReads reads = SlopeReads::kNothing;  // kNothing: `gradient` or `no_gradient` of the row
  int flops = 0;                            // per element of the backward operator
  std::string_view doc = "";                // its line of documentation
};

struct ElementwiseRow {
  std::string_view name;
  std::string_view doc;
  std::vector<Formula> formulas;  // one, or several from which the attributes choose
  ElementTypes types = ElementTypes::kFloating;
  int flops = 1;  // per element, at most 15; a transcendental function counts one
  Slope slope = {};
  std::unique_ptr<Options> (*make_attrs)() = nullptr;
  size_t (*formula_of)(const Options&) = nullptr;                // nullptr: the first
  std::vector<TensorType> (*infer)(const OpContext&) = nullptr;  // nullptr: by the number of inputs and `types`
  void (*gradient)(GradientBuilder&) = nullptr;                  // for a function without a backward operator
  std::string_view no_gradient = "";
  PrecisionRule precision = PrecisionRule::kFollow;
  QuantizeRule quantize = QuantizeRule::kTable;
  bool (*quantizable)(const OpContext&) = nullptr;  // of kCompute: as OpDef's
  void (*integer_form)(IntegerBuilder&) = nullptr;
  Activation activation = Activation::kNone;  // products and norms can apply its first formula under this name
  std::string_view layer = "";                // documentation of the layer in recipes; "": there is no layer
  std::vector<std::string_view> cases = {};   // as OpDef's; empty: inputs of equal shapes
  std::string_view onnx_reads = "";           // another ONNX operator that is read as this function: "Mish" (opset 18)

  int arity() const { return formulas.front().values; }
  /// The formula that these attributes choose; nullptr: there are no attributes.
  const Formula& formula(const Options* attributes) const { return formulas[formula_of != nullptr ? formula_of(*attributes) : 0]; }
};

std::span<const ElementwiseRow> elementwise_rows();
/// The row of an operator or, with `backward`, of the function whose backward operator it is; nullptr: not in this table.
const ElementwiseRow* find_elementwise(std::string_view op, bool backward = false);
/// The row of an activation other than kNone.
const ElementwiseRow& elementwise_row(Activation activation);

/// The values of the attributes' real options, in order.
FunctionNumbers function_numbers(const Options* attributes);

/// Read and set the real option of that name. Throw InternalError if there is none.
double number_option(const Options& attributes, std::string_view name);
void set_number_option(Options& attributes, std::string_view name, double value);

/// The activation as which another operator may apply this node's function; nullopt: none.
std::optional<Activation> activation_of(const Node& node);
/// The activation of x.
double activate(Activation activation, double x);

using ScalarFunction = std::function<double(double)>;
/// The function of an operator of QuantizeRule::kTable with its attributes.
ScalarFunction scalar_function(const OpDef& op, const Options* attributes);

}  // namespace galley
