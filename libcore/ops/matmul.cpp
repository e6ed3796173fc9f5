#include "libcore/ops/matmul.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/f8.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

std::vector<TensorType> infer_linear(const OpContext& c) {
  const TensorType& x = c.in(0);
  const TensorType& w = c.in(1);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() >= 1, "x must have a dimension of features, not ", x.shape);
  GALLEY_CHECK(w.shape.rank() == 2, "weight must be [O,I], not ", w.shape);
  GALLEY_CHECK(w.dtype == x.dtype, "the weight is ", w.dtype, ", but the input is ", x.dtype);
  GALLEY_CHECK(x.shape[-1] == w.shape[1], "weight needs ", w.shape[1], " input features, but the input has ", x.shape[-1], ": input ",
               x.shape, ", weight ", w.shape);
  if (c.has(2)) GALLEY_CHECK(c.in(2).shape == Shape({w.shape[0]}), "bias must be [", w.shape[0], "], not ", c.in(2).shape);
  TensorType y = x;
  y.shape[-1] = w.shape[0];
  if (!y.names.empty()) y.names.back().clear();
  y.names = tidy_names(std::move(y.names));
  return {y};
}

Shape leading(const Shape& shape) {
  Shape lead;
  for (int axis = 0; axis + 2 < shape.rank(); ++axis) lead.push_back(shape[axis]);
  return lead;
}

std::vector<TensorType> infer_matmul(const OpContext& c) {
  const auto& attrs = c.attrs<MatmulAttrs>();
  const TensorType& a = c.in(0);
  const TensorType& b = c.in(1);
  check_floating(a, "a");
  GALLEY_CHECK(a.dtype == b.dtype, "a is ", a.dtype, ", but b is ", b.dtype);
  GALLEY_CHECK(a.shape.rank() >= 2 && b.shape.rank() >= 2, "a and b need at least two dimensions: a ", a.shape, ", b ", b.shape);
  const int64_t m = a.shape[attrs.transpose_a ? -1 : -2], k = a.shape[attrs.transpose_a ? -2 : -1];
  const int64_t n = b.shape[attrs.transpose_b ? -2 : -1], kb = b.shape[attrs.transpose_b ? -1 : -2];
  GALLEY_CHECK(k == kb, "inner sizes ", k, " and ", kb, " differ: a ", a.shape, attrs.transpose_a ? " transposed" : "", ", b ", b.shape,
               attrs.transpose_b ? " transposed" : "");
  GALLEY_CHECK(a.shape.rank() == 2 || b.shape.rank() == 2 || leading(a.shape) == leading(b.shape), "leading dimensions differ: a ", a.shape,
               ", b ", b.shape);
  TensorType y;
  y.dtype = a.dtype;
  y.shape = leading(a.shape.rank() >= b.shape.rank() ? a.shape : b.shape);
  y.shape.push_back(m);
  y.shape.push_back(n);
  return {y};
}

Cost cost_linear(const OpContext& c) {
  return operand_cost(c, 2.0 * static_cast<double>(c.out(0).elements()) * static_cast<double>(c.in(1).shape[1]));
}
Cost cost_matmul(const OpContext& c) {
  const int64_t k = c.in(0).shape[c.attrs<MatmulAttrs>().transpose_a ? -2 : -1];
  return operand_cost(c, 2.0 * static_cast<double>(c.out(0).elements()) * static_cast<double>(k));
}

/// Joins all leading dimensions: [...,F] -> [M,F].
Value rows(Value x) {
  return x.shape().rank() == 2 ? x : reshape(x, {x.shape()[-1] == 0 ? 0 : x.type().elements() / x.shape()[-1], x.shape()[-1]});
}

void linear_gradient(GradientBuilder& g) {
  GALLEY_ASSERT(g.attrs<LinearAttrs>().activation == Activation::kNone, "a fused linear layer has no gradient; fuse only for inference");
  if (g.wants(0)) g.set(0, reshape(matmul(rows(g.grad()), g.in(1)), g.in(0).shape()));
  if (g.wants(1)) g.set(1, matmul(rows(g.grad()), rows(g.in(0)), {true, false}));
  if (g.in(2) && g.wants(2)) g.set(2, cast(sum(rows(g.grad()), {0}), g.in(2).dtype()));
}

/// Sums over the batch dimensions that the operand does not have.
Value unbatched(Value gradient, Value operand) {
  if (operand.shape().rank() == gradient.shape().rank()) return gradient;
  std::vector<int64_t> axes;
  for (int axis = 0; axis + 2 < gradient.shape().rank(); ++axis) axes.push_back(axis);
  return sum(gradient, axes);
}

void matmul_gradient(GradientBuilder& g) {
  const auto& t = g.attrs<MatmulAttrs>();
  const Value a = g.in(0), b = g.in(1), y = g.grad();
  if (g.wants(0)) {
    g.set(0, unbatched(t.transpose_a ? matmul(b, y, {t.transpose_b, true}) : matmul(y, b, {false, !t.transpose_b}), a));
  }
  if (g.wants(1)) {
    g.set(1, unbatched(t.transpose_b ? matmul(y, a, {true, t.transpose_a}) : matmul(a, y, {!t.transpose_a, false}), b));
  }
}

}  // namespace

void LinearAttrs::options(OptionVisitor& v) {
  v.choice({.name = "activation", .doc = "function applied to the result"}, activation, kActivationNames);
}
void MatmulAttrs::options(OptionVisitor& v) {
  v.option({.name = "transpose_a", .doc = "transpose the last two dimensions of a"}, transpose_a);
  v.option({.name = "transpose_b", .doc = "transpose the last two dimensions of b"}, transpose_b);
}

namespace {
void linear_on_integers(IntegerBuilder& b) {
  QuantizedLinearAttrs attrs;
  attrs.activation = b.attrs<LinearAttrs>().activation;
  attrs.saturation = saturation_of(b.weight());
  set_input_and_result(b, attrs);
  b.set(quantized_linear(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs));
}
void linear_by_batch(IntegerBuilder& b) {
  DynamicQuantizedLinearAttrs attrs;
  attrs.activation = b.attrs<LinearAttrs>().activation;
  attrs.saturation = saturation_of(b.weight());
  b.set(dynamic_quantized_linear(b.in(0), b.weight().values, b.weight().scale, b.bias(), attrs));
}
}  // namespace

const OpDef& linear_op() {
  static const OpDef def{.name = "linear",
                         .doc = "x weight^T + bias, with activation",
                         .inputs = {"x", Port::weight("weight"), Port::statistics("bias?")},
                         .outputs = {"y"},
                         .make_attrs = make_options<LinearAttrs>,
                         .infer = infer_linear,
                         .gradient = linear_gradient,
                         .cost = cost_linear,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeadsInference},
                         .precision = PrecisionRule::kLow,
                         .quantize = QuantizeRule::kProduct,
                         .definition = definition::linear,
                         .integer_form = linear_on_integers,
                         .dynamic_form = linear_by_batch,
                         .f8_form = linear_on_f8,
                         .cases = {"linear:mb16ic2048oc1000"},
                         .letters = CaseLetters::kMatrix};
  return def;
}
const OpDef& matmul_op() {
  static const OpDef def{.name = "matmul",
                         .doc = "matrix product, batched over leading dimensions",
                         .inputs = {"a", "b"},
                         .outputs = {"y"},
                         .make_attrs = make_options<MatmulAttrs>,
                         .infer = infer_matmul,
                         .gradient = matmul_gradient,
                         .cost = cost_matmul,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kLow,
                         .cases = {"matmul:512x512+512x512", "matmul:24x197x64+24x64x197"}};
  return def;
}

OpTable matmul_ops() { return {&linear_op(), &matmul_op()}; }

Value linear(Value x, Value weight, Value bias, const LinearAttrs& attrs) { return emit("linear", {x, weight, bias}, attrs); }
Value matmul(Value a, Value b, const MatmulAttrs& attrs) { return emit("matmul", {a, b}, attrs); }

}  // namespace galley
