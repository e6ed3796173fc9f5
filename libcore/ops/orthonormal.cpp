#include "libcore/ops/orthonormal.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  GALLEY_CHECK(c.in(0).shape.rank() == 2, "a matrix [n, r] is needed, not ", c.in(0));
  GALLEY_CHECK(is_floating(c.in(0).dtype), "columns of type ", c.in(0).dtype, " have no norm");
  TensorType y = c.in(0);
  y.format = {};
  return {y};
}

/// Each column once for its norms, and twice for each column before it.
Cost cost(const OpContext& c) {
  const auto rows = static_cast<double>(c.in(0).shape[0]), columns = static_cast<double>(c.in(0).shape[1]);
  Cost cost = operand_cost(c, 0);
  cost.flops = rows * columns * (5 + 2 * (columns - 1));
  return cost;
}

}  // namespace

const OpDef& orthonormal_columns_op() {
  static const OpDef def{.name = "orthonormal_columns",
                         .doc = "orthonormal columns that span those of a matrix (modified Gram-Schmidt)",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .infer = infer,
                         .no_gradient = "it stands between gradients and their sums over ranks",
                         .cost = cost,
                         .work = WorkClass::kProduct,
                         .layout = {.formats = FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32};
  return def;
}

Value orthonormal_columns(Value x) { return emit("orthonormal_columns", {x}); }

OpTable orthonormal_ops() { return {&orthonormal_columns_op()}; }

}  // namespace galley
