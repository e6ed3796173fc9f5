// The formulas of the element-wise functions. Each is written once for every number type V: double (ops/scalar.h), vectors of floats
// (backends/cpu/elementwise.cpp) and the float of a GPU compiler. The file is included inside a namespace that first declares
// GALLEY_FUNCTION (the function specifiers) and, for its V:
//
// - the operators + - * / and unary -, the comparisons < <= > >= == != (they give masks), and & of masks;
// - is_nan(x); select(mask, a, b); keep(mask, x), which is x or 0; at_least(x, low) and at_most(x, high), which propagate NaN;
//   over(x, n), which is x / n for a constant n;
// - mul_add(a, b, c), which is a * b + c; abs, sqrt, exp, expm1 (x up to 88), log, log1p (x in 0..1), tanh, erf, sin, cos, pow, floor,
//   round (half to even);
// - normal(x), the normal distribution function.
//
// The file includes nothing and uses nothing of the host, so that a device compiler takes it unchanged. It has no include guard.
//
// A function is a struct. value(inputs..., numbers...) is its result; the numbers are the real-valued options of the operator's attributes,
// in order. slope(x, y, numbers...) is its derivative, where y is the result. It reads x or y; the function's row in ops/elementwise.cpp
// says which. Where PyTorch does not compute grad * slope (0 * inf), backward(grad, x, y, numbers...) gives the gradient. Add new functions
// to the list at the end.

#ifndef GALLEY_FUNCTION
#define GALLEY_FUNCTION inline
#endif

template <int kValues, int kNumbers = 0>
struct Function {
  static constexpr int values = kValues, numbers = kNumbers;
};

// clang-format off: one line per formula

template <class V>
GALLEY_FUNCTION V sigmoid_of(V x) { return V(1) / (V(1) + exp(-x)); }
/// ln(1 + e^x) without overflow.
template <class V>
GALLEY_FUNCTION V softplus_of(V x) { return at_least(x, V(0)) + log1p(exp(-abs(x))); }

// ---- of one value

struct Relu : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return at_least(x, V(0)); }
  template <class V>
  GALLEY_FUNCTION static V slope(V, V y) { return select(y > V(0), V(1), V(0)); }
  template <class V>
  GALLEY_FUNCTION static V backward(V grad, V, V y) { return keep(y > V(0), grad); }
};

struct Relu6 : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return at_most(at_least(x, V(0)), V(6)); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return select((x > V(0)) & (x < V(6)), V(1), V(0)); }
  template <class V>
  GALLEY_FUNCTION static V backward(V grad, V x, V) { return keep((x > V(0)) & (x < V(6)), grad); }
};

struct Hardsigmoid : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return over(at_most(at_least(x + V(3), V(0)), V(6)), 6); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return select((x > V(-3)) & (x < V(3)), V(1.0 / 6), V(0)); }
  template <class V>
  GALLEY_FUNCTION static V backward(V grad, V x, V) { return keep((x > V(-3)) & (x < V(3)), over(grad, 6)); }
};

struct Hardswish : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return x * Hardsigmoid::value(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return select(x <= V(-3), V(0), select(x >= V(3), V(1), over(x, 3) + V(0.5))); }
};

struct Sigmoid : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return sigmoid_of(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V, V y) { return y * (V(1) - y); }
};

struct Silu : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return x * sigmoid_of(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) {
    const V s = sigmoid_of(x);
    return s * (V(1) + x * (V(1) - s));
  }
};

struct Gelu : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return x * normal(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return normal(x) + x * (V(0.39894228040143268) * exp(V(-0.5) * x * x)); }  // 1 / sqrt(2 pi)
};

/// gelu by tanh (Hendrycks, Gimpel 2016).
struct GeluTanh : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V tanh_of(V x) { return tanh(V(0.79788456080286536) * (x + V(0.044715) * x * x * x)); }  // sqrt(2 / pi)
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return V(0.5) * x * (V(1) + tanh_of(x)); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) {
    const V t = tanh_of(x), inner = V(0.79788456080286536) * (V(1) + V(3) * V(0.044715) * x * x);
    return mul_add(V(0.5), V(1) + t, V(0.5) * x * (V(1) - t * t) * inner);
  }
};

struct Tanh : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return tanh(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V, V y) { return V(1) - y * y; }
};

struct Softplus : Function<1, 2> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V beta, V threshold) {
    const V scaled = x * beta;
    return select(scaled > threshold, x, softplus_of(scaled) / beta);
  }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V, V beta, V threshold) {
    const V scaled = x * beta;
    return select(scaled > threshold, V(1), sigmoid_of(scaled));
  }
};

/// x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). From 20 on the factor is 1 in double too, and e^2x would overflow later.
struct Mish : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) {
    const V e = exp(at_most(x, V(20))), n = e * (e + V(2));
    return x * (n / (n + V(2)));
  }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) {
    const V e = exp(at_most(x, V(20))), n = e * (e + V(2)), m = n + V(2);
    const V factor_slope = V(4) * (n + V(1)) / (m * m) * (e / (V(1) + e));
    return select(x > V(20), V(1), n / m + x * factor_slope);
  }
};

struct Elu : Function<1, 1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V alpha) { return select(x > V(0), x, alpha * expm1(at_most(x, V(0)))); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V, V alpha) { return select(x > V(0), V(1), alpha * exp(x)); }
};

/// Elu with alpha and a factor at which activations keep mean 0 and variance 1 (the constants of the paper, as PyTorch has them).
struct Selu : Function<1> {
  static constexpr double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return select(x > V(0), V(scale) * x, V(scale * alpha) * expm1(at_most(x, V(0)))); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return select(x > V(0), V(scale), V(scale * alpha) * exp(x)); }
};

struct Celu : Function<1, 1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V alpha) { return select(x > V(0), x, alpha * expm1(at_most(x, V(0)) / alpha)); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V, V alpha) { return select(x > V(0), V(1), exp(x / alpha)); }
};

struct Softsign : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return x / (V(1) + abs(x)); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) {
    const V root = V(1) + abs(x);
    return V(1) / (root * root);
  }
};

struct LeakyRelu : Function<1, 1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V negative_slope) { return select(x > V(0), x, x * negative_slope); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V, V negative_slope) { return select(x > V(0), V(1), negative_slope); }
};

struct LogSigmoid : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return at_most(x, V(0)) - log1p(exp(-abs(x))); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return sigmoid_of(-x); }
};

struct Erf : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return erf(x); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V) { return V(1.1283791670955126) * exp(-(x * x)); }  // 2 / sqrt(pi)
};

struct Exp : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return exp(x); }
};
struct Log : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return log(x); }
};
struct Sqrt : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return sqrt(x); }
};
struct Rsqrt : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return V(1) / sqrt(x); }
};
struct Sin : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return sin(x); }
};
struct Cos : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return cos(x); }
};
struct Neg : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return -x; }
};
struct Abs : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return abs(x); }
};
struct Square : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return x * x; }
};
struct Reciprocal : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return V(1) / x; }
};
/// 0 of both zeros and of NaN, as PyTorch.
struct Sign : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return select(x > V(0), V(1), select(x < V(0), V(-1), V(0))); }
};
struct Floor : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return floor(x); }
};
struct Round : Function<1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x) { return round(x); }
};
struct Pow : Function<1, 1> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V exponent) { return pow(x, exponent); }
};
struct Clamp : Function<1, 2> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V min, V max) { return at_most(at_least(x, min), max); }
  template <class V>
  GALLEY_FUNCTION static V slope(V x, V, V min, V max) { return select((x >= min) & (x <= max), V(1), V(0)); }
  template <class V>
  GALLEY_FUNCTION static V backward(V grad, V x, V, V min, V max) { return keep((x >= min) & (x <= max), grad); }
};
struct Affine : Function<1, 2> {
  template <class V>
  GALLEY_FUNCTION static V value(V x, V scale, V shift) { return mul_add(x, scale, shift); }
};

// ---- of two values

struct Add : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return a + b; }
};
struct Sub : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return a - b; }
};
struct Mul : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return a * b; }
};
struct Div : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return a / b; }
};
/// NaN where either is.
struct Maximum : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(is_nan(a), a, at_least(b, a)); }
};
struct Minimum : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(is_nan(a), a, at_most(b, a)); }
};
struct Power : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return pow(a, b); }
};
struct Prelu : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(a > V(0), a, a * b); }
};

/// A gated linear unit whose gate is silu (Shazeer 2020).
struct Swiglu : Function<2> {
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return Silu::value(a) * b; }
};

/// Comparisons are masks; value is 1 where they hold.
struct Equal : Function<2> {
  template <class V>
  GALLEY_FUNCTION static auto holds(V a, V b) { return a == b; }
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(holds(a, b), V(1), V(0)); }
};
struct Less : Function<2> {
  template <class V>
  GALLEY_FUNCTION static auto holds(V a, V b) { return a < b; }
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(holds(a, b), V(1), V(0)); }
};
struct Greater : Function<2> {
  template <class V>
  GALLEY_FUNCTION static auto holds(V a, V b) { return a > b; }
  template <class V>
  GALLEY_FUNCTION static V value(V a, V b) { return select(holds(a, b), V(1), V(0)); }
};

// ---- of three values

struct Where : Function<3> {
  template <class V>
  GALLEY_FUNCTION static V value(V condition, V a, V b) { return select(condition != V(0), a, b); }
};

// clang-format on

template <class... F>
struct FunctionList {};
/// All of them. Back ends compile each function of this list.
using Functions =
    FunctionList<Relu, Relu6, Hardsigmoid, Hardswish, Sigmoid, Silu, Gelu, GeluTanh, Tanh, Softplus, Mish, Elu, Selu, Celu, Softsign,
                 LeakyRelu, LogSigmoid, Erf, Exp, Log, Sqrt, Rsqrt, Sin, Cos, Neg, Abs, Square, Reciprocal, Sign, Floor, Round, Pow, Clamp,
                 Affine, Add, Sub, Mul, Div, Maximum, Minimum, Power, Prelu, Swiglu, Equal, Less, Greater, Where>;
