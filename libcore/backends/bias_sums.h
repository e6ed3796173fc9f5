#pragma once
// Backward operators that add up their result over rows, for the rewrites of back ends: that sum is the gradient of the bias of the linear
// layer before, whose own kernel would read the result again.

#include "libcore/ops/norm.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/target.h"

namespace galley {

/// grad, x, mean, rstd, gamma?, addend? -> dx, dgamma, dbeta, sums: layer_norm_backward of the last dimension; then dx is the sum of its dx
/// and `addend`. sums: those of dx over all other dimensions, in its dtype.
const OpDef& layer_norm_backward_sums_op();
/// grad, x -> dx, sums: gelu_backward, and the sums of dx over all dimensions but the last.
const OpDef& gelu_backward_sums_op();
std::vector<Value> layer_norm_backward_sums(Value grad, Value x, Value mean, Value rstd, Value gamma, Value addend);
std::vector<Value> gelu_backward_sums(Value grad, Value x, const GeluAttrs& attrs);

/// Registers the operators, once.
void ensure_bias_sum_operators();

/// kBeforeLayout, after use_residual_norms: layer_norm_backward, layer_norm_backward_add and gelu_backward also add up their result over
/// rows, where a node reads that sum and the target has such a kernel. A sum is rounded once, as the operator `sum` does. gelu_backward
/// stays as it is where another element-wise function makes its gradient or reads its result: they become one chain.
PassReport use_bias_sums(Graph& graph, const Target& target);

}  // namespace galley
