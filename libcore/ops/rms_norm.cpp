#include "libcore/ops/rms_norm.h"

#include <numeric>

#include "libcore/ops/binary.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

TensorType statistics_of(const TensorType& x, const Shape& shape) {
  TensorType type;
  type.dtype = x.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  type.shape = shape;
  return type;
}

Shape leading(const Shape& shape) {
  Shape part;
  for (int axis = 0; axis + 1 < shape.rank(); ++axis) part.push_back(shape[axis]);
  return part;
}

void check_weight(const OpContext& c, int i, const TensorType& x) {
  if (c.has(i))
    GALLEY_CHECK(c.in(i).shape == Shape({x.shape[-1]}), "weight must be [", x.shape[-1], "] as x ", x.shape, ", is ", c.in(i).shape);
}

std::vector<TensorType> infer(const OpContext& c) {
  const TensorType& x = c.in(0);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() >= 1, "x needs a dimension to normalize, is ", x);
  check_weight(c, 1, x);
  return {x, statistics_of(x, leading(x.shape))};
}

std::vector<TensorType> infer_backward(const OpContext& c) {
  const TensorType& x = c.in(1);
  check_floating(x, "x");
  check_like(c.in(0), "grad", x, "the input");
  GALLEY_CHECK(c.in(2).shape == leading(x.shape), "rstd must be ", leading(x.shape), ", is ", c.in(2).shape);
  check_weight(c, 3, x);
  TensorType weight = statistics_of(x, {x.shape[-1]});
  if (c.has(3)) weight.dtype = c.in(3).dtype;
  return {x, weight};
}

void gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  const std::vector<Value> d = rms_norm_backward(g.grad(0), g.in(0), g.out(1), g.in(1), g.attrs<RmsNormAttrs>());
  g.set(0, d[0]);
  if (g.in(1)) g.set(1, d[1]);
}

}  // namespace

void RmsNormAttrs::options(OptionVisitor& v) {
  v.option({.name = "eps", .doc = "added to the mean of squares", .min = 0}, eps);
  v.option({.name = "offset", .doc = "added to the weight"}, offset);
}

namespace definition {

/// offset + weight; absent without a weight.
Value rms_factor(Expansion& e, size_t weight) { return e.has(weight) ? affine(e.in(weight), 1, e.attrs<RmsNormAttrs>().offset) : Value(); }

void rms_norm(Expansion& e) {
  const Value x = e.in(0), factor = rms_factor(e, 1);
  const Value rstd = rsqrt(affine(mean(square(x), {-1}, true), 1, e.attrs<RmsNormAttrs>().eps));
  const Value normal = mul(x, rstd);
  e.set(0, factor ? mul(normal, factor) : normal);
  e.set(1, reshape(rstd, e.output_type(1).shape));
}

void rms_norm_backward(Expansion& e) {
  const Value grad = e.in(0), x = e.in(1), factor = rms_factor(e, 3);
  const int rank = x.shape().rank();
  Shape kept = x.shape();
  kept[rank - 1] = 1;
  const Value rstd = reshape(e.in(2), kept), normal = mul(x, rstd), d = factor ? mul(grad, factor) : grad;
  e.set(0, mul(rstd, sub(d, mul(normal, mean(mul(d, normal), {-1}, true)))));
  std::vector<int64_t> rows(static_cast<size_t>(rank - 1));
  std::iota(rows.begin(), rows.end(), 0);
  e.set(1, sum_over(mul(grad, normal), rows, false));
}

}  // namespace definition

const OpDef& rms_norm_op() {
  static const OpDef def{.name = "rms_norm",
                         .doc = "root mean square normalization (Zhang, Sennrich 2019)",
                         .inputs = {"x", Port::statistics("weight?")},
                         .outputs = {"y", Port::statistics("rstd")},
                         .make_attrs = make_options<RmsNormAttrs>,
                         .infer = infer,
                         .gradient = gradient,
                         .cost = input_cost<4>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::rms_norm,
                         .cases = {"rms_norm:4096x768+768", "rms_norm:512x4096+4096"}};
  return def;
}

const OpDef& rms_norm_backward_op() {
  static const OpDef def{.name = "rms_norm_backward",
                         .doc = "gradients of rms_norm",
                         .inputs = {"grad", "x", Port::statistics("rstd"), Port::statistics("weight?")},
                         .outputs = {"dx", Port::statistics("dweight")},
                         .make_attrs = make_options<RmsNormAttrs>,
                         .infer = infer_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<8>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::rms_norm_backward,
                         .cases = {"rms_norm_backward:4096x768+4096x768+4096+768"}};
  return def;
}

RmsNorm rms_norm(Value x, Value weight, const RmsNormAttrs& attrs) {
  const std::vector<Value> r = emit_all("rms_norm", std::make_unique<RmsNormAttrs>(attrs), std::vector<Value>{x, weight});
  return {r[0], r[1]};
}
std::vector<Value> rms_norm_backward(Value grad, Value x, Value rstd, Value weight, const RmsNormAttrs& attrs) {
  return emit_all("rms_norm_backward", std::make_unique<RmsNormAttrs>(attrs), std::vector<Value>{grad, x, rstd, weight});
}

OpTable rms_norm_ops() { return {&rms_norm_op(), &rms_norm_backward_op()}; }

}  // namespace galley
