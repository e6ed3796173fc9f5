// The table of element-wise functions. A new function is a struct in elementwise_functions.h, a row here, and a row in
// tests/ops/elementwise_cases.cpp.

#include "libcore/ops/elementwise.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/scalar.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

// ---- formulas as functions of double

template <class F, class... All>
constexpr size_t position(scalar::FunctionList<All...>) {
  size_t at = 0;
  ((std::is_same_v<F, All> ? false : (++at, true)) && ...);
  return at;
}

template <class F>
concept HasSlope = requires { &F::template slope<double>; };
template <class F>
concept HasBackward = requires { &F::template backward<double>; };

/// Calls f(arguments..., numbers...) with the number of attributes that the function has.
template <class F, class Call, class... Arguments>
double with_numbers(Call call, const FunctionNumbers& k, Arguments... arguments) {
  if constexpr (F::numbers == 0) return call(arguments...);
  if constexpr (F::numbers == 1) return call(arguments..., k[0]);
  if constexpr (F::numbers == 2) return call(arguments..., k[0], k[1]);
}

template <class F>
double value_of(const double* x, const FunctionNumbers& k) {
  constexpr auto call = [](auto... all) { return F::value(all...); };
  if constexpr (F::values == 1) return with_numbers<F>(call, k, x[0]);
  if constexpr (F::values == 2) return with_numbers<F>(call, k, x[0], x[1]);
  if constexpr (F::values == 3) return with_numbers<F>(call, k, x[0], x[1], x[2]);
}
template <class F>
double slope_of(double x, double y, const FunctionNumbers& k) {
  return with_numbers<F>([](auto... all) { return F::slope(all...); }, k, x, y);
}
template <class F>
double backward_of(double grad, double from, const FunctionNumbers& k) {
  if constexpr (HasBackward<F>) return with_numbers<F>([](auto... all) { return F::backward(all...); }, k, grad, from, from);
  return grad * slope_of<F>(from, from, k);
}

template <class F>
Formula formula(std::string_view onnx) {
  Formula f{.function = position<F>(scalar::Functions()), .values = F::values, .numbers = F::numbers, .value = value_of<F>, .onnx = onnx};
  if constexpr (HasSlope<F>) {
    f.slope = slope_of<F>;
    f.backward = backward_of<F>;
  }
  return f;
}

// ---- attributes

struct SoftplusAttrs : OptionsOf<SoftplusAttrs> {
  double beta = 1, threshold = 20;
  void options(OptionVisitor& v) override {
    v.option({.name = "beta", .doc = "factor of x, and divisor of the result"}, beta);
    v.option({.name = "threshold", .doc = "the result is x if beta * x exceeds this"}, threshold);
  }
};
struct EluAttrs : OptionsOf<EluAttrs> {
  double alpha = 1;
  void options(OptionVisitor& v) override { v.option({.name = "alpha", .doc = "limit of the result for small x is -alpha"}, alpha); }
};
struct CeluAttrs : OptionsOf<CeluAttrs> {
  double alpha = 1;
  void options(OptionVisitor& v) override {
    v.option({.name = "alpha", .doc = "above 0; limit of the result for small x is -alpha, and the slope is 1 at 0"}, alpha);
  }
};
struct LeakyReluAttrs : OptionsOf<LeakyReluAttrs> {
  double negative_slope = 0.01;
  void options(OptionVisitor& v) override { v.option({.name = "negative_slope", .doc = "factor of x below 0"}, negative_slope); }
};

size_t gelu_formula(const Options& attributes) { return static_cast<size_t>(dynamic_cast<const GeluAttrs&>(attributes).approximate); }

/// For thresholds of at least 20, ln(1 + e^x) equals x in f32 above the threshold, so ONNX's operator without threshold is the same
/// function.
size_t softplus_formula(const Options& attributes) { return dynamic_cast<const SoftplusAttrs&>(attributes).threshold >= 20 ? 0 : 1; }

std::vector<TensorType> infer_celu(const OpContext& c) {
  check_floating(c.in(0), "x");
  const double alpha = c.attrs<CeluAttrs>().alpha;
  GALLEY_CHECK(alpha > 0, "alpha is ", alpha, "; it must be above 0");
  return {c.in(0)};
}

std::vector<TensorType> infer_clamp(const OpContext& c) {
  const auto& attrs = c.attrs<ClampAttrs>();
  GALLEY_CHECK(attrs.min <= attrs.max, "min ", attrs.min, " is above max ", attrs.max);
  check_not_bool(c.in(0), "x");
  return {c.in(0)};
}
std::vector<TensorType> infer_softplus(const OpContext& c) {
  const double beta = c.attrs<SoftplusAttrs>().beta;
  GALLEY_CHECK(beta > 0, "beta is ", beta, "; it must be above 0");
  check_floating(c.in(0), "x");
  return {c.in(0)};
}
std::vector<TensorType> infer_where(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype == DType::kBool, "the condition must be bool, not ", c.in(0));
  GALLEY_CHECK(c.in(1).dtype == c.in(2).dtype, "a and b must have the same dtype: a ", c.in(1), ", b ", c.in(2), "; cast one");
  return {broadcast_types(broadcast_types(c.in(1), c.in(2)), c.in(0))};
}
std::vector<TensorType> infer_comparison(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype == c.in(1).dtype, "a and b must have the same dtype: a ", c.in(0), ", b ", c.in(1), "; cast one");
  std::vector<TensorType> types{broadcast_types(c.in(0), c.in(1))};
  types[0].dtype = DType::kBool;
  return types;
}

// ---- gradients without a backward operator

Value scalar_like(Value x, double value) {
  TensorType scalar;
  scalar.dtype = x.dtype();
  return full(x.graph(), scalar, value);
}

/// For functions whose slope is 0 wherever it is defined.
void no_slope(GradientBuilder&) {}

void abs_gradient(GradientBuilder& g) {
  const Value zero = scalar_like(g.in(0), 0);
  g.set(0, where(greater(g.in(0), zero), g.grad(), where(less(g.in(0), zero), neg(g.grad()), zero)));
}
void pow_gradient(GradientBuilder& g) {
  const double exponent = g.attrs<PowAttrs>().exponent;
  // Exponents 0 and 1 are special cases: 0 * x^-1 would be NaN at x = 0.
  if (exponent == 0) return g.set(0, full(g.grad().graph(), g.in(0).type(), 0));
  if (exponent == 1) return g.set(0, g.grad());
  g.set(0, mul(g.grad(), affine(pow(g.in(0), exponent - 1), exponent)));
}

/// Sets the gradient of input i, summed over the dimensions in which the input was broadcast.
void set_summed(GradientBuilder& g, size_t i, Value gradient) { g.set(i, sum_to(gradient, g.in(i).shape())); }

void add_gradient(GradientBuilder& g) {
  for (size_t i : {0u, 1u}) {
    if (g.wants(i)) set_summed(g, i, g.grad());
  }
}
void sub_gradient(GradientBuilder& g) {
  if (g.wants(0)) set_summed(g, 0, g.grad());
  if (g.wants(1)) set_summed(g, 1, neg(g.grad()));
}
void mul_gradient(GradientBuilder& g) {
  for (size_t i : {0u, 1u}) {
    if (g.wants(i)) set_summed(g, i, mul(g.grad(), g.in(1 - i)));
  }
}
void div_gradient(GradientBuilder& g) {
  if (g.wants(0)) set_summed(g, 0, div(g.grad(), g.in(1)));
  if (g.wants(1)) set_summed(g, 1, neg(div(mul(g.grad(), g.out()), g.in(1))));
}
/// Gradient of maximum and minimum. kWins is `greater` or `less`.
template <Value (*kWins)(Value, Value)>
void extremum_gradient(GradientBuilder& g) {
  for (size_t i : {0u, 1u}) {
    if (!g.wants(i)) continue;
    const Value tie = where(equal(g.in(0), g.in(1)), affine(g.grad(), 0.5), scalar_like(g.grad(), 0));
    set_summed(g, i, where(kWins(g.in(i), g.in(1 - i)), g.grad(), tie));
  }
}
void power_gradient(GradientBuilder& g) {
  const Value a = g.in(0), b = g.in(1);
  const Value zero = scalar_like(a, 0);
  // `where` avoids 0 * inf: for exponent 0 the slope is 0, and 0^b does not depend on b > 0.
  if (g.wants(0)) set_summed(g, 0, where(equal(b, zero), zero, mul(g.grad(), mul(b, power(a, affine(b, 1, -1))))));
  if (g.wants(1)) set_summed(g, 1, where(equal(a, zero), zero, mul(g.grad(), mul(g.out(), log(a)))));
}
void prelu_gradient(GradientBuilder& g) {
  const Value x = g.in(0), weight = g.in(1), zero = scalar_like(g.grad(), 0), positive = greater(x, scalar_like(x, 0));
  if (g.wants(0)) set_summed(g, 0, where(positive, g.grad(), mul(g.grad(), weight)));
  if (g.wants(1)) set_summed(g, 1, where(positive, zero, mul(g.grad(), x)));
}
void swiglu_gradient(GradientBuilder& g) {
  const Value gate = g.in(0), x = g.in(1), grad = g.grad();
  // silu_backward does not broadcast; the gradient of a gate that does is summed before its slope is applied.
  if (g.wants(0)) g.set(0, silu_backward(sum_to(mul(grad, x), gate.shape()), gate));
  if (g.wants(1)) set_summed(g, 1, mul(grad, silu(gate)));
}
void where_gradient(GradientBuilder& g) {
  const Value zero = scalar_like(g.grad(), 0);
  if (g.wants(1)) set_summed(g, 1, where(g.in(0), g.grad(), zero));
  if (g.wants(2)) set_summed(g, 2, where(g.in(0), zero, g.grad()));
}

// ---- rows

using namespace scalar;  // the structs of elementwise_functions.h; used only in rows
constexpr ElementTypes kNumbers = ElementTypes::kNumbers;
constexpr SlopeReads kInput = SlopeReads::kInput, kOutput = SlopeReads::kOutput;

std::vector<ElementwiseRow> activation_rows() {
  return {
      {.name = "relu",
       .doc = "max(x, 0)",
       .formulas = {formula<Relu>("Relu(x)")},
       .types = kNumbers,
       .slope = {kOutput, 1, "grad where y > 0, else 0"},
       .activation = Activation::kRelu,
       .layer = "max(x, 0)"},
      {.name = "relu6",
       .doc = "min(max(x, 0), 6)",
       .formulas = {formula<Relu6>("Clip(x, 0, 6)")},
       .types = kNumbers,
       .flops = 2,
       .slope = {kInput, 2, "grad where 0 < x < 6, else 0"},
       .activation = Activation::kRelu6,
       .layer = "min(max(x, 0), 6)"},
      {.name = "hardswish",
       .doc = "x * relu6(x + 3) / 6 (Howard et al. 2019)",
       .formulas = {formula<Hardswish>("HardSwish(x)")},
       .flops = 5,
       .slope = {kInput, 4, "grad * (0 up to -3, x/3 + 1/2 below 3, 1 from 3 on)"},
       .activation = Activation::kHardswish,
       .layer = "x * relu6(x + 3) / 6"},
      {.name = "hardsigmoid",
       .doc = "relu6(x + 3) / 6",
       .formulas = {formula<Hardsigmoid>("HardSigmoid[alpha=0.16666666666666666,beta=0.5](x)")},
       .flops = 4,
       .slope = {kInput, 3, "grad / 6 where -3 < x < 3, else 0"},
       .activation = Activation::kHardsigmoid,
       .layer = "relu6(x + 3) / 6"},
      {.name = "sigmoid",
       .doc = "1 / (1 + exp(-x))",
       .formulas = {formula<Sigmoid>("Sigmoid(x)")},
       .flops = 4,
       .slope = {kOutput, 3, "grad * y * (1 - y)"},
       .activation = Activation::kSigmoid,
       .layer = "1 / (1 + exp(-x))"},
      {.name = "silu",
       .doc = "x * sigmoid(x)",
       .formulas = {formula<Silu>("Mul(x, Sigmoid(x))")},
       .flops = 5,
       .slope = {kInput, 8, "grad * s * (1 + x * (1 - s)), s = sigmoid(x)"},
       .activation = Activation::kSilu,
       .layer = "x * sigmoid(x)"},
      // x * Phi(x), in the form that exporters write and runtimes recognize.
      {.name = "gelu",
       .doc = "x * Phi(x), exact or by tanh (Hendrycks, Gimpel 2016)",
       .formulas = {formula<Gelu>("Mul(Mul(x, Add(Erf(Div(x, 1.4142135623730951)), 1)), 0.5)"),
                    formula<GeluTanh>(
                        "Mul(Mul(x, 0.5), Add(Tanh(Mul(Add(x, Mul(Mul(Mul(x, x), x), 0.044715)), 0.79788456080286536)), 1))")},
       .flops = 5,
       .slope = {kInput, 8, "grad * (Phi(x) + x * phi(x)), or the derivative of the tanh form"},
       .make_attrs = make_options<GeluAttrs>,
       .formula_of = gelu_formula,
       .activation = Activation::kGelu,
       .layer = "x * Phi(x) (Hendrycks, Gimpel 2016)"},
  };
}

std::vector<ElementwiseRow> further_activation_rows() {
  return {
      {.name = "tanh",
       .doc = "hyperbolic tangent",
       .formulas = {formula<Tanh>("Tanh(x)")},
       .slope = {kOutput, 3, "grad * (1 - y * y)"},
       .activation = Activation::kTanh,
       .layer = "hyperbolic tangent"},
      {.name = "elu",
       .doc = "x above 0, else alpha * (exp(x) - 1) (Clevert et al. 2016)",
       .formulas = {formula<Elu>("Elu[alpha=$alpha](x)")},
       .flops = 3,
       .slope = {kInput, 3, "grad where x > 0, else grad * alpha * exp(x)"},
       .make_attrs = make_options<EluAttrs>,
       .layer = "x above 0, else alpha * (exp(x) - 1) (Clevert et al. 2016)"},
      {.name = "selu",
       .doc = "1.0507 x above 0, else 1.7581 * (exp(x) - 1) (Klambauer et al. 2017)",
       .formulas = {formula<Selu>("Selu(x)")},
       .flops = 4,
       .slope = {kInput, 4, "grad * 1.0507 where x > 0, else grad * 1.7581 * exp(x)"},
       .layer = "1.0507 x above 0, else 1.7581 * (exp(x) - 1) (Klambauer et al. 2017)"},
      {.name = "celu",
       .doc = "x above 0, else alpha * (exp(x / alpha) - 1) (Barron 2017)",
       .formulas = {formula<Celu>("Celu[alpha=$alpha](x)")},
       .flops = 4,
       .slope = {kInput, 3, "grad where x > 0, else grad * exp(x / alpha)"},
       .make_attrs = make_options<CeluAttrs>,
       .infer = infer_celu,
       .layer = "x above 0, else alpha * (exp(x / alpha) - 1) (Barron 2017)"},
      {.name = "leaky_relu",
       .doc = "x above 0, else negative_slope * x (Maas et al. 2013)",
       .formulas = {formula<LeakyRelu>("LeakyRelu[alpha=$negative_slope](x)")},
       .flops = 2,
       .slope = {kInput, 2, "grad where x > 0, else grad * negative_slope"},
       .make_attrs = make_options<LeakyReluAttrs>,
       .layer = "x above 0, else negative_slope * x (Maas et al. 2013)"},
      {.name = "softplus",
       .doc = "ln(1 + exp(beta * x)) / beta, and x where beta * x > threshold (Dugas et al. 2001)",
       .formulas = {formula<Softplus>("Div(Softplus(Mul(x, $beta)), $beta)"),
                    formula<Softplus>("Where(Greater(Mul(x, $beta), $threshold), x, Div(Softplus(Mul(x, $beta)), $beta))")},
       .flops = 6,
       .slope = {kInput, 5, "grad * sigmoid(beta * x), and grad where beta * x > threshold"},
       .make_attrs = make_options<SoftplusAttrs>,
       .formula_of = softplus_formula,
       .infer = infer_softplus,
       .layer = "ln(1 + exp(beta * x)) / beta (Dugas et al. 2001)",
       .onnx_reads = "Softplus"},
      {.name = "mish",
       .doc = "x * tanh(ln(1 + exp(x))) (Misra 2020)",
       .formulas = {formula<Mish>("Mul(x, Tanh(Softplus(x)))")},
       .flops = 6,
       .slope = {kInput, 14, "grad * (t + x * (1 - t * t) * sigmoid(x)), t = tanh(ln(1 + exp(x)))"},
       .layer = "x * tanh(ln(1 + exp(x))) (Misra 2020)",
       .onnx_reads = "Mish"},
      {.name = "softsign",
       .doc = "x / (1 + |x|) (Bergstra et al. 2009)",
       .formulas = {formula<Softsign>("Softsign(x)")},
       .flops = 3,
       .slope = {kInput, 5, "grad / (1 + |x|)^2"},
       .layer = "x / (1 + |x|) (Bergstra et al. 2009)"},
      {.name = "logsigmoid",
       .doc = "ln(sigmoid(x))",
       .formulas = {formula<LogSigmoid>("Neg(Softplus(Neg(x)))")},
       .flops = 5,
       .slope = {kInput, 4, "grad * sigmoid(-x)"},
       .layer = "ln(sigmoid(x))"},
  };
}

std::vector<ElementwiseRow> unary_rows() {
  constexpr PrecisionRule kWide = PrecisionRule::kKeepF32;  // the range or the slope is too large for low precision
  return {
      {.name = "exp",
       .doc = "e to the x",
       .formulas = {formula<Exp>("Exp(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, mul(g.grad(), g.out())); },
       .precision = kWide},
      {.name = "log",
       .doc = "natural logarithm",
       .formulas = {formula<Log>("Log(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, div(g.grad(), g.in(0))); },
       .precision = kWide},
      {.name = "sqrt",
       .doc = "square root",
       .formulas = {formula<Sqrt>("Sqrt(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, affine(div(g.grad(), g.out()), 0.5)); },
       .precision = kWide},
      {.name = "rsqrt",
       .doc = "1 / sqrt(x)",
       .formulas = {formula<Rsqrt>("Reciprocal(Sqrt(x))")},
       .flops = 2,
       .gradient = [](GradientBuilder& g) { g.set(0, mul(g.grad(), affine(mul(g.out(), square(g.out())), -0.5))); },
       .precision = kWide},
      {.name = "erf",
       .doc = "error function",
       .formulas = {formula<Erf>("Erf(x)")},
       .slope = {kInput, 4, "grad * 2 / sqrt(pi) * exp(-x * x)"},
       .layer = "error function"},
      {.name = "sin",
       .doc = "sine",
       .formulas = {formula<Sin>("Sin(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, mul(g.grad(), cos(g.in(0)))); }},
      {.name = "cos",
       .doc = "cosine",
       .formulas = {formula<Cos>("Cos(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, neg(mul(g.grad(), sin(g.in(0))))); }},
      {.name = "neg",
       .doc = "-x",
       .formulas = {formula<Neg>("Neg(x)")},
       .types = kNumbers,
       .gradient = [](GradientBuilder& g) { g.set(0, neg(g.grad())); }},
      {.name = "abs",
       .doc = "absolute value; gradient 0 at 0",
       .formulas = {formula<Abs>("Abs(x)")},
       .types = kNumbers,
       .gradient = abs_gradient},
      {.name = "square",
       .doc = "x * x",
       .formulas = {formula<Square>("Mul(x, x)")},
       .types = kNumbers,
       .gradient = [](GradientBuilder& g) { g.set(0, mul(g.grad(), affine(g.in(0), 2))); }},
      {.name = "reciprocal",
       .doc = "1 / x",
       .formulas = {formula<Reciprocal>("Reciprocal(x)")},
       .gradient = [](GradientBuilder& g) { g.set(0, neg(mul(g.grad(), square(g.out())))); },
       .precision = kWide},
  };
}

std::vector<ElementwiseRow> rounding_and_scaling_rows() {
  return {
      {.name = "sign",
       .doc = "-1, 0 or 1; gradient 0",
       .formulas = {formula<Sign>("Sign(x)")},
       .types = kNumbers,
       .gradient = no_slope,
       .layer = "-1, 0 or 1; gradient 0"},
      {.name = "floor",
       .doc = "the largest integer that is not above x; gradient 0",
       .formulas = {formula<Floor>("Floor(x)")},
       .gradient = no_slope,
       .layer = "the largest integer that is not above x; gradient 0"},
      {.name = "round",
       .doc = "the nearest integer, halves to the even one; gradient 0",
       .formulas = {formula<Round>("Round(x)")},
       .gradient = no_slope,
       .layer = "the nearest integer, halves to the even one; gradient 0"},
      {.name = "pow",
       .doc = "x to a constant exponent; a fractional one needs x >= 0",
       .formulas = {formula<Pow>("Pow(x, $exponent)")},
       .make_attrs = make_options<PowAttrs>,
       .gradient = pow_gradient,
       .precision = PrecisionRule::kKeepF32},
      {.name = "clamp",
       .doc = "min(max(x, min), max)",
       .formulas = {formula<Clamp>("Clip(x, $min, $max)")},
       .types = kNumbers,
       .flops = 2,
       .slope = {kInput, 2, "grad where min <= x <= max, else 0"},
       .make_attrs = make_options<ClampAttrs>,
       .infer = infer_clamp},
      {.name = "affine",
       .doc = "x * scale + shift",
       .formulas = {formula<Affine>("Add(Mul(x, $scale), $shift)")},
       .flops = 2,
       .make_attrs = make_options<AffineAttrs>,
       .gradient = [](GradientBuilder& g) { g.set(0, affine(g.grad(), g.attrs<AffineAttrs>().scale)); }},
  };
}

std::vector<ElementwiseRow> rows_of_several() {
  constexpr QuantizeRule kFloat = QuantizeRule::kFloat, kCompute = QuantizeRule::kCompute;
  return {
      {.name = "add",
       .doc = "a + b",
       .formulas = {formula<Add>("Add(a, b)")},
       .types = kNumbers,
       .gradient = add_gradient,
       .quantize = kCompute,
       .quantizable = quantized_pair,
       .integer_form = add_on_integers,
       .layer = "sum of its inputs"},
      {.name = "sub",
       .doc = "a - b",
       .formulas = {formula<Sub>("Sub(a, b)")},
       .types = kNumbers,
       .gradient = sub_gradient,
       .quantize = kFloat,
       .layer = "first input minus the others"},
      {.name = "mul",
       .doc = "a * b",
       .formulas = {formula<Mul>("Mul(a, b)")},
       .types = kNumbers,
       .gradient = mul_gradient,
       .quantize = kCompute,
       .quantizable = quantized_pair,
       .integer_form = mul_on_integers,
       .layer = "product of its inputs"},
      {.name = "div", .doc = "a / b", .formulas = {formula<Div>("Div(a, b)")}, .gradient = div_gradient, .quantize = kFloat},
      {.name = "maximum",
       .doc = "the larger of a and b",
       .formulas = {formula<Maximum>("Max(a, b)")},
       .types = kNumbers,
       .gradient = extremum_gradient<greater>,
       .quantize = kFloat,
       .layer = "largest of its inputs, element by element"},
      {.name = "minimum",
       .doc = "the smaller of a and b",
       .formulas = {formula<Minimum>("Min(a, b)")},
       .types = kNumbers,
       .gradient = extremum_gradient<less>,
       .quantize = kFloat},
      {.name = "power",
       .doc = "a to the b",
       .formulas = {formula<Power>("Pow(a, b)")},
       .gradient = power_gradient,
       .precision = PrecisionRule::kKeepF32,
       .quantize = kFloat},
      {.name = "prelu",
       .doc = "a above 0, else a * b (He et al. 2015)",
       .formulas = {formula<Prelu>("PRelu(a, b)")},
       .types = kNumbers,
       .flops = 2,
       .gradient = prelu_gradient,
       .quantize = kFloat},
      {.name = "swiglu",
       .doc = "silu(a) * b: a gate and what it lets pass (Shazeer 2020)",
       .formulas = {formula<Swiglu>("Mul(Mul(a, Sigmoid(a)), b)")},
       .flops = 6,
       .gradient = swiglu_gradient,
       .quantize = kFloat,
       .layer = "silu of the first input, times the second"},
  };
}

std::vector<ElementwiseRow> comparison_and_choice_rows() {
  constexpr QuantizeRule kFloat = QuantizeRule::kFloat;
  constexpr std::string_view kConstant = "piecewise constant";
  return {
      {.name = "equal",
       .doc = "a == b, as bool",
       .formulas = {formula<Equal>("Equal(a, b)")},
       .infer = infer_comparison,
       .no_gradient = kConstant,
       .quantize = kFloat},
      {.name = "less",
       .doc = "a < b, as bool",
       .formulas = {formula<Less>("Less(a, b)")},
       .infer = infer_comparison,
       .no_gradient = kConstant,
       .quantize = kFloat},
      {.name = "greater",
       .doc = "a > b, as bool",
       .formulas = {formula<Greater>("Greater(a, b)")},
       .infer = infer_comparison,
       .no_gradient = kConstant,
       .quantize = kFloat},
      {.name = "where",
       .doc = "a where the condition holds, else b; all three broadcast",
       .formulas = {formula<Where>("Where(a, b, c)")},
       .infer = infer_where,
       .gradient = where_gradient,
       .quantize = kFloat,
       .cases = {"where:16x64x56x56@bool+16x64x56x56+16x64x56x56"}},
  };
}

}  // namespace

std::span<const ElementwiseRow> elementwise_rows() {
  static const std::vector<ElementwiseRow> rows = [] {
    std::vector<ElementwiseRow> all;
    for (std::vector<ElementwiseRow> (*family)() :
         {activation_rows, further_activation_rows, unary_rows, rounding_and_scaling_rows, rows_of_several, comparison_and_choice_rows}) {
      for (ElementwiseRow& row : family()) all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

}  // namespace galley
