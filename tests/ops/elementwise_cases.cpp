// Cases of element-wise functions of one value, one row per function. Hand values are computed from the formulas, see the comments.

#include <cmath>

#include "libcore/ops/elementwise_chain.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/unary.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

using Apply = std::function<Value(Value)>;

/// A function by the name of its operator, with options by their names.
Apply by_name(std::string op, std::vector<std::pair<std::string, double>> options = {}) {
  return [op, options](Value x) {
    ensure_ops_registered();
    const OpDef& def = find_op(op);
    std::unique_ptr<Options> attributes = def.make_attrs != nullptr ? def.make_attrs() : nullptr;
    for (const auto& [name, value] : options) set_number_option(*attributes, name, value);
    const Value inputs[] = {x};
    return emit_all(op, std::move(attributes), inputs).front();
  };
}

struct Simple {
  std::string name;
  Apply apply;
  std::vector<double> x, y;  // hand values
  Fill fill;                 // for gradients and kernels: away from kinks, inside the domain
};

/// Steps over these inputs (elementwise_chain.h).
void chain(const std::vector<std::string>& steps, const std::vector<int64_t>& operands, const std::vector<Value>& inputs) {
  ensure_ops_registered();
  auto attrs = std::make_unique<ElementwiseChainAttrs>();
  attrs->steps = parse_chain_steps(steps, operands);
  emit_all("elementwise_chain", std::move(attrs), inputs);
}

std::vector<OpCase> chain_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::function<void(CaseInputs&)> build, std::vector<double> expected = {}) {
    cases.push_back(
        {.name = "elementwise_chain_" + name, .build = std::move(build), .expected = std::move(expected), .low_precision = true});
  };
  // (3 x + 1)^2 as a product of a value with itself: 4^2, 7^2, (-2)^2.
  add("hand", [](CaseInputs& in) { chain({"affine scale=3 shift=1", "mul"}, {0, 1, 1}, {in.values({3}, {1, 2, -1})}); }, {16, 49, 4});
  // a^3 + a of a = 3 x + 1, which three steps read: its tile is not overwritten before the last.
  add("read_later",
      [](CaseInputs& in) { chain({"affine scale=3 shift=1", "square", "mul", "add"}, {0, 1, 1, 2, 3, 1}, {in.values({3}, {1, 2, -1})}); },
      {68, 350, -10});
  // (silu(x) gate + y) scale: one value per channel and image, and one per channel. Short rows, whole tiles, more than a tile.
  for (const Shape& shape : {Shape{2, 19, 3, 7}, Shape{3, 5, 29, 31}, Shape{2, 1030, 2, 3}, Shape{1, 3, 40, 60}}) {
    add(cat("gate_", shape[1], "_", shape[2]), [shape](CaseInputs& in) {
      chain({"silu", "mul", "add", "mul"}, {0, 4, 1, 5, 2, 6, 3},
            {in.real(shape), in.real({shape[0], shape[1], 1, 1}), in.real(shape), in.real({shape[1], 1, 1})});
    });
  }
  add("backward", [](CaseInputs& in) {
    chain({"add", "silu_backward", "clamp min=-0.5 max=0.5"}, {0, 1, 3, 2, 4},
          {in.real({3, 700}), in.real({3, 1}), in.real({3, 700}, {.low = -6, .high = 6})});
  });
  // The exact gelu as written by exporters, for tokens; scalars are inputs.
  add("gelu", [](CaseInputs& in) {
    chain({"div", "erf", "add", "mul", "mul"}, {0, 1, 4, 5, 2, 0, 6, 7, 3},
          {in.real({3, 7, 10}, {.low = -4, .high = 4}), in.values({}, {1.4142135623730951}), in.values({1}, {1}), in.values({}, {0.5})});
  });
  // The end of a layer norm: one mean and one root per token, one scale and one shift per channel.
  add("norm_tail", [](CaseInputs& in) {
    chain({"sub", "div", "mul", "add"}, {0, 1, 5, 2, 6, 3, 7, 4},
          {in.real({2, 9, 70}), in.real({2, 9, 1}), in.real({2, 9, 1}, {.low = 0.5, .high = 2}), in.real({70}), in.real({70})});
  });
  // A result of two broadcast inputs; and eight steps on a single number.
  add("outer", [](CaseInputs& in) { chain({"sub", "square"}, {0, 1, 2}, {in.real({5, 1, 9}), in.real({7, 1})}); });
  add("number",
      [](CaseInputs& in) {
        chain({"add", "abs", "sqrt", "exp", "neg", "exp", "mul", "tanh"}, {0, 1, 2, 3, 4, 5, 6, 7, 0, 8},
              {in.values({}, {3}), in.values({}, {1})});
      },
      {std::tanh(3 * std::exp(-std::exp(2)))});
  cases.back().low_precision = false;  // exp of a rounded 7.4
  // In f64, as definitions of operators compute.
  std::vector<double> x(2 * 5 * 3 * 7), grad(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>(i * 37 % 101) / 16 - 3;
    grad[i] = static_cast<double>(i * 29 % 97) / 32 - 1;
  }
  const Shape shape{2, 5, 3, 7};
  cases.push_back(
      {.name = "silu_of_f64", .build = [=](CaseInputs& in) { by_name("silu")(in.values(shape, x, DType::kF64)); }, .forward_only = true});
  cases.push_back({.name = "silu_backward_of_f64",
                   .build =
                       [=](CaseInputs& in) {
                         const Value inputs[] = {in.values(shape, grad, DType::kF64), in.values(shape, x, DType::kF64)};
                         emit_all("silu_backward", nullptr, inputs);
                       },
                   .forward_only = true});
  return cases;
}

std::vector<Simple> simple_functions() {
  const double e = 2.718281828459045, s1 = 0.7310585786300049;  // sigmoid(1)
  const Fill wide{.low = -8, .high = 8}, positive{.low = 0.2, .high = 3};
  return {
      {"relu", relu, {-2, 0, 3}, {0, 0, 3}, {.kinks = {0}}},
      {"relu6", relu6, {-2, 0, 3, 7}, {0, 0, 3, 6}, {.low = -8, .high = 8, .kinks = {0, 6}}},
      {"hardswish", hardswish, {-4, -3, -1, 0, 1, 3, 5}, {0, 0, -1.0 / 3, 0, 2.0 / 3, 3, 5}, {.low = -5, .high = 5, .kinks = {-3, 3}}},
      {"hardsigmoid", hardsigmoid, {-4, 0, 1.5, 4}, {0, 0.5, 0.75, 1}, {.low = -5, .high = 5, .kinks = {-3, 3}}},
      {"sigmoid", sigmoid, {0, 1, -1}, {0.5, s1, 1 - s1}, wide},
      {"silu", silu, {0, 1, -1}, {0, s1, s1 - 1}, wide},
      {"tanh", tanh, {0, 1, -1}, {0, 0.7615941559557649, -0.7615941559557649}, {.low = -3, .high = 3}},
      {"exp", exp, {0, 1, -1}, {1, e, 1 / e}, {}},
      {"log", log, {1, e}, {0, 1}, positive},
      {"sqrt", sqrt, {0, 4, 2.25}, {0, 2, 1.5}, positive},
      {"rsqrt", rsqrt, {4, 0.25}, {0.5, 2}, positive},
      {"sin", sin, {0, 1}, {0, 0.8414709848078965}, wide},
      {"cos", cos, {0, 1}, {1, 0.5403023058681398}, wide},
      {"neg", neg, {1, -2}, {-1, 2}, {}},
      {"abs", abs, {-2, 0, 3}, {2, 0, 3}, {.kinks = {0}}},
      {"square", square, {-2, 0, 3}, {4, 0, 9}, {}},
      {"reciprocal", reciprocal, {4, -0.5}, {0.25, -2}, positive},
      {"softplus",
       by_name("softplus"),
       {0, 1, -1, 20, 21, -20},
       {0.6931471805599453, 1.3132616875182228, 0.3132616875182228, 20, 21, 2.0611536e-9},
       wide},
      // beta 2: ln(1 + e^2) / 2; above x = 1.5 the function is x.
      {"softplus_low",
       by_name("softplus", {{"beta", 2}, {"threshold", 3}}),
       {1, 0, 1.6, -20},
       {1.0634640055214862, 0.34657359027997264, 1.6, 0},
       {.low = -4, .high = 4, .kinks = {1.5}}},
      {"mish", by_name("mish"), {0, 1, -1, 21}, {0, 0.8650983882673103, -0.30340146137410895, 21}, wide},
      {"elu", by_name("elu"), {0, 1, -1}, {0, 1, -0.6321205588285577}, wide},
      {"elu_alpha", by_name("elu", {{"alpha", 2.5}}), {3, -1}, {3, -1.5803013970713942}, {.low = -4, .high = 4, .kinks = {0}}},
      {"selu",
       by_name("selu"),
       {2, 0, -1, -20},
       {2.101401974710961, 0, -1.1113307378125625, -1.758099337223664},
       {.low = -4, .high = 4, .kinks = {0}}},
      {"celu", by_name("celu"), {0, 1, -1}, {0, 1, -0.6321205588285577}, {.low = -4, .high = 4, .kinks = {0}}},
      // 0.5 (e^-2 - 1).
      {"celu_alpha", by_name("celu", {{"alpha", 0.5}}), {3, -1}, {3, -0.43233235838169365}, {.low = -4, .high = 4, .kinks = {0}}},
      {"softsign", by_name("softsign"), {3, -1, 0}, {0.75, -0.5, 0}, {.low = -4, .high = 4, .kinks = {0}}},
      {"leaky_relu", by_name("leaky_relu"), {2, 0, -3}, {2, 0, -0.03}, {.kinks = {0}}},
      {"leaky_relu_slope", by_name("leaky_relu", {{"negative_slope", 0.25}}), {2, -3}, {2, -0.75}, {.kinks = {0}}},
      {"logsigmoid",
       by_name("logsigmoid"),
       {0, 1, -1, 30, -30},
       {-0.6931471805599453, -0.3132616875182228, -1.3132616875182228, 0, -30},
       wide},
      {"erf", by_name("erf"), {0, 1, -0.5, 4}, {0, 0.8427007929497149, -0.5204998778130465, 0.9999999845827421}, {.low = -3, .high = 3}},
      {"sign", by_name("sign"), {-2, 0, 3}, {-1, 0, 1}, {.kinks = {0}}},
      {"floor", by_name("floor"), {-1.5, -1, 0.5, 2}, {-2, -1, 0, 2}, {.low = -3, .high = 3, .kinks = {-3, -2, -1, 0, 1, 2, 3}}},
      {"round",
       by_name("round"),
       {-1.5, -0.5, 0.5, 1.5, 2.5, 2.6},
       {-2, 0, 0, 2, 2, 3},
       {.low = -3, .high = 3, .kinks = {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}}},
  };
}

void add_simple_functions(std::vector<OpCase>& cases) {
  for (const Simple& s : simple_functions()) {
    const Shape hand{static_cast<int64_t>(s.x.size())};
    cases.push_back({.name = s.name + "_hand", .build = [s, hand](CaseInputs& in) { s.apply(in.values(hand, s.x)); }, .expected = s.y});
    // Hand values at kinks, where finite differences do not apply; the slope of the root at 0 is infinite.
    if (!s.fill.kinks.empty() || s.name == "sqrt" || s.name == "elu")
      cases.back().build = [s, hand](CaseInputs& in) { s.apply(in.fixed(in.values(hand, s.x))); };
    cases.push_back(
        {.name = s.name + "_image", .build = [s](CaseInputs& in) { s.apply(in.real({2, 5, 3, 7}, s.fill)); }, .low_precision = true});
    cases.push_back({.name = s.name + "_empty", .build = [s](CaseInputs& in) { s.apply(in.real({0, 5, 3, 7})); }});
  }
}

void add_gelu(std::vector<OpCase>& cases) {
  GeluAttrs by_tanh;
  by_tanh.approximate = GeluApproximation::kTanh;
  cases.push_back({.name = "gelu_hand",
                   .build = [](CaseInputs& in) { gelu(in.values({3}, {0, 1, -1})); },
                   .expected = {0, 0.8413447460685429, -0.15865525393145707}});
  // 0.5 (1 + tanh(0.7978845608 * 1.044715)) = 0.8411919906082768
  cases.push_back({.name = "gelu_tanh_hand",
                   .build = [by_tanh](CaseInputs& in) { gelu(in.values({2}, {0, 1}), by_tanh); },
                   .expected = {0, 0.8411919906082768}});
  cases.push_back(
      {.name = "gelu_tokens", .build = [](CaseInputs& in) { gelu(in.real({3, 7, 10}, {.low = -4, .high = 4})); }, .low_precision = true});
  cases.push_back({.name = "gelu_tanh_tokens",
                   .build = [by_tanh](CaseInputs& in) { gelu(in.real({3, 7, 10}, {.low = -4, .high = 4}), by_tanh); },
                   .low_precision = true});

  // Large values of both signs, and enough for several threads.
  for (const bool tanh_form : {false, true}) {
    const GeluAttrs form = tanh_form ? by_tanh : GeluAttrs();
    cases.push_back({.name = cat("gelu_far_", tanh_form),
                     .build = [form](CaseInputs& in) { gelu(in.real({2, 5, 37, 101}, {.low = -12, .high = 12}), form); },
                     .forward_only = true});
    cases.push_back(
        {.name = cat("gelu_backward_far_", tanh_form),
         .build =
             [form](CaseInputs& in) { gelu_backward(in.real({2, 5, 37, 101}), in.real({2, 5, 37, 101}, {.low = -12, .high = 12}), form); },
         .forward_only = true});
  }
}

void add_functions_with_options(std::vector<OpCase>& cases) {
  cases.push_back({.name = "pow_hand", .build = [](CaseInputs& in) { pow(in.values({3}, {1, 2, 3}), 3); }, .expected = {1, 8, 27}});
  for (double exponent : {0.0, 1.0, 2.0, -1.5}) {
    cases.push_back({.name = cat("pow_", static_cast<int>(exponent * 10 + 20)),
                     .build = [exponent](CaseInputs& in) { pow(in.real({3, 5}, {.low = 0.3, .high = 2}), exponent); }});
  }
  cases.push_back({.name = "clamp_hand",
                   .build = [](CaseInputs& in) { clamp(in.fixed(in.values({4}, {-2, -1, 0.5, 3})), -1, 2); },
                   .expected = {-1, -1, 0.5, 2}});
  cases.push_back(
      {.name = "clamp_image", .build = [](CaseInputs& in) { clamp(in.real({2, 5, 3, 7}, {.kinks = {-0.4, 0.6}}), -0.4, 0.6); }});
  cases.push_back(
      {.name = "affine_hand", .build = [](CaseInputs& in) { affine(in.values({3}, {1, 0, -2}), 3, 0.5); }, .expected = {3.5, 0.5, -5.5}});
  cases.push_back(
      {.name = "affine_image", .build = [](CaseInputs& in) { affine(in.real({2, 5, 3, 7}), -1.5, 0.25); }, .low_precision = true});
}

/// Backward operators at their kinks, by the convention of PyTorch: slope 0 at the ends, but 1 at the ends of clamp.
void add_kinks(std::vector<OpCase>& cases) {
  const auto ones = [](CaseInputs& in, int64_t n) { return in.values({n}, std::vector<double>(static_cast<size_t>(n), 2)); };
  cases.push_back({.name = "relu_backward_kink",
                   .build = [ones](CaseInputs& in) { relu_backward(ones(in, 3), in.values({3}, {-1, 0, 1})); },
                   .expected = {0, 0, 2}});
  cases.push_back({.name = "relu6_backward_kink",
                   .build = [ones](CaseInputs& in) { relu6_backward(ones(in, 4), in.values({4}, {0, 3, 6, 7})); },
                   .expected = {0, 2, 0, 0}});
  cases.push_back({.name = "hardswish_backward_kink",
                   .build = [ones](CaseInputs& in) { hardswish_backward(ones(in, 4), in.values({4}, {-3, 0, 3, 4})); },
                   .expected = {0, 1, 2, 2}});
  cases.push_back({.name = "hardsigmoid_backward_kink",
                   .build = [ones](CaseInputs& in) { hardsigmoid_backward(ones(in, 3), in.values({3}, {-3, 0, 3})); },
                   .expected = {0, 1.0 / 3, 0}});
  cases.push_back({.name = "clamp_backward_kink",
                   .build =
                       [ones](CaseInputs& in) {
                         ClampAttrs attrs;
                         attrs.min = -1;
                         attrs.max = 1;
                         clamp_backward(ones(in, 4), in.values({4}, {-1, 0, 1, 1.5}), attrs);
                       },
                   .expected = {2, 2, 2, 0}});
}

}  // namespace

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> cases;
  add_simple_functions(cases);
  add_gelu(cases);
  add_functions_with_options(cases);
  add_kinks(cases);
  for (OpCase& c : chain_cases()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace galley::test
