#include "libcore/backends/cpu/rewrite/gates.h"

#include "libcore/backends/cpu/rewrite/definitions.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer_sum_products(const OpContext& c) {
  check_like(c.in(1), "b", c.in(0), "a");
  return infer_part(sum_to_op(), c.attrs<ShapeAttrs>(), {&c.in(0)});
}

std::vector<TensorType> infer_gated(const OpContext& c) {
  const auto& a = c.attrs<BatchNormBackwardAttrs>();
  const TensorType& x = c.in(1);
  GALLEY_CHECK(!a.residual, "a gradient through a gate belongs to no residual");
  std::vector<TensorType> types = infer_part(batch_norm_backward_op(), a, {&c.in(0), &x, &c.in(2), &c.in(3), given(c, 4), given(c, 5)});
  TensorType each = x;
  for (int d = 2; d < x.shape.rank(); ++d) each.shape[d] = 1;
  check_like(c.in(6), "gate", each, "each channel of each image");
  check_like(c.in(7), "spread", each, "each channel of each image");
  return types;
}

Cost cost_gated(const OpContext& c) { return operand_cost(c, 12.0 * static_cast<double>(c.in(1).elements())); }

}  // namespace

const OpDef& sum_products_op() {
  static const OpDef def{.name = "sum_products",
                         .doc = "sum_to(a * b)",
                         .inputs = {"a", "b"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ShapeAttrs>,
                         .infer = infer_sum_products,
                         .no_gradient = kAfterDifferentiation,
                         .cost = input_cost<2>,
                         .definition = cpu_definition::sum_products,
                         .made_by_rewrite = true,
                         .cases = {"sum_products:16x64x56x56+16x64x56x56:shape=[16,64,1,1]"}};
  return def;
}

const OpDef& gated_batch_norm_backward_op() {
  static const OpDef def{
      .name = "gated_batch_norm_backward",
      .doc = "gradients of batch_norm whose result is multiplied by a gate for each channel of each image (Hu et al. 2018)",
      .inputs = {"grad", "x", Port::statistics("mean"), Port::statistics("var"), Port::statistics("gamma?"), Port::statistics("beta?"),
                 "gate", "spread"},
      .outputs = {"dx", Port::statistics("dgamma"), Port::statistics("dbeta")},
      .make_attrs = make_options<BatchNormBackwardAttrs>,
      .infer = infer_gated,
      .no_gradient = kNoSecondDerivative,
      .cost = cost_gated,
      .layout = {.prefers_channels_last = true},
      .precision = PrecisionRule::kActivations,
      .may_reuse = {{0, 1}, {0, 0}},
      .definition = cpu_definition::gated_batch_norm_backward,
      .made_by_rewrite = true,
      .variant_of = "batch_norm_backward",
      .cases = {"gated_batch_norm_backward:16x64x56x56+16x64x56x56+64+64+64+64+16x64x1x1+16x64x1x1"}};
  return def;
}

Value sum_products(Value a, Value b, const ShapeAttrs& attrs) { return emit(sum_products_op(), {a, b}, attrs); }

std::vector<Value> gated_batch_norm_backward(Value grad, Value x, Value mean, Value var, Value gamma, Value beta, Value gate, Value spread,
                                             const BatchNormBackwardAttrs& attrs) {
  const std::vector<Value> inputs{grad, x, mean, var, gamma, beta, gate, spread};
  return emit_all(gated_batch_norm_backward_op(), std::make_unique<BatchNormBackwardAttrs>(attrs), inputs);
}

}  // namespace galley
