#pragma once
// Convolutions that add up their results for the batch norm that follows, for the rewrites of back ends: the norm reads its input once
// less.

#include "libcore/ops/conv.h"
#include "libcore/ops/norm.h"
#include "libcore/passes/target.h"

namespace galley {

/// x, weight -> y, sum, squares: conv2d without bias, residual and activation, and for each channel of y the sum of its elements and that
/// of their squares, [O] in f32.
const OpDef& conv2d_sums_op();
/// x, gamma?, beta?, residual?, sum, squares -> y, mean, var: batch_norm whose statistics follow from sums:
/// mean = sum / count, var = max(0, squares / count - mean^2). The difference cancels digits where the mean is many times the deviation:
/// of 24 bits, 2 log2(mean / deviation).
const OpDef& batch_norm_of_sums_op();
std::vector<Value> conv2d_sums(Value x, Value weight, const Conv2dAttrs& attrs);
std::vector<Value> batch_norm_of_sums(const std::vector<Value>& inputs, const BatchNormAttrs& attrs);

/// Registers the operators, once.
void ensure_convolution_sum_operators();

/// kBeforeLayout: convolutions before batch norms give them the sums, where the target has such convolutions.
PassReport use_convolution_sums(Graph& graph, const Target& target);

}  // namespace galley
