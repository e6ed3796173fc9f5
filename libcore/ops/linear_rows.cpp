#include "libcore/ops/linear_rows.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/index.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  const TensorType &x = c.in(0), &weight = c.in(1), &count = c.in(3);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 3, "x must be [N,R,I], not ", x);
  GALLEY_CHECK(weight.dtype == x.dtype && weight.shape.rank() == 2 && weight.shape[1] == x.shape[2], "weight must be ", x.dtype, " [O,",
               x.shape[2], "], not ", weight);
  if (c.has(2)) {
    GALLEY_CHECK(c.in(2).dtype == x.dtype && c.in(2).shape == Shape{weight.shape[0]}, "bias must be ", x.dtype, " ", Shape{weight.shape[0]},
                 ", not ", c.in(2));
  }
  GALLEY_CHECK(count.dtype == DType::kI64 && count.shape == Shape{x.shape[0]}, "count must be i64 ", Shape{x.shape[0]}, ", not ", count);
  TensorType y = x;
  y.names = {};
  y.shape = {x.shape[0], x.shape[1], weight.shape[0]};
  return {y};
}

void define(Expansion& e) {
  const Value y = linear(e.in(0), e.in(1), e.has(2) ? e.in(2) : Value(), e.attrs<LinearAttrs>());
  const Shape& s = y.shape();
  const Value row = cast(iota(e.graph(), DType::kI64, {1, s[1], 1}, 1), e.compute());
  const Value count = reshape(e.real(3), {s[0], 1, 1});
  e.set(0, where(less(row, count), y, e.constant(0)));
}

/// All rows: how many are valid depends on the data.
Cost cost(const OpContext& c) {
  return operand_cost(c, 2.0 * static_cast<double>(c.out(0).elements()) * static_cast<double>(c.in(0).shape[2]));
}

}  // namespace

const OpDef& linear_rows_op() {
  static const OpDef def{.name = "linear_rows",
                         .doc = "a linear layer of the first rows of each sample",
                         .inputs = {"x", Port::weight("weight"), Port::statistics("bias?"), Port::index("count")},
                         .outputs = {"y"},
                         .make_attrs = make_options<LinearAttrs>,
                         .infer = infer,
                         .no_gradient = "it is for predictions; training computes all rows",
                         .cost = cost,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = define,
                         .cases = {"linear_rows:1x1000x12544+1024x12544+1024+1@i64"}};
  return def;
}

Value linear_rows(Value x, Value weight, Value bias, Value count, const LinearAttrs& attrs) {
  return emit("linear_rows", {x, weight, bias, count}, attrs);
}

}  // namespace galley
