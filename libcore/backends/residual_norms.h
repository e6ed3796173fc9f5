#pragma once
// Norms with the additions beside them, for the rewrites of back ends: memory traffic bounds both, and a sum that a norm makes or reads
// itself is an array less to write and to read.

#include "libcore/ops/norm.h"
#include "libcore/ops/rms_norm.h"
#include "libcore/passes/target.h"

namespace galley {

struct AddLayerNormAttrs : OptionsOf<AddLayerNormAttrs> {
  LayerNormAttrs norm;
  bool keep_sum = false;  // whether the sum is an output
  void options(OptionVisitor& v) override;
};
struct AddRmsNormAttrs : OptionsOf<AddRmsNormAttrs> {
  RmsNormAttrs norm;
  bool keep_sum = false;
  void options(OptionVisitor& v) override;
};

/// x, residual, gamma?, beta? -> y, mean, rstd[, sum]: layer_norm of the sum of two arrays of one type. y and the sum may take their
/// memory.
const OpDef& add_layer_norm_op();
/// x, residual, weight? -> y, rstd[, sum]: rms_norm of such a sum.
const OpDef& add_rms_norm_op();
/// grad, x, mean, rstd, gamma, addend -> dx, dgamma, dbeta: layer_norm_backward; then dx is the sum of its dx and `addend`.
const OpDef& layer_norm_backward_add_op();
/// grad, x, rstd, weight, addend -> dx, dweight.
const OpDef& rms_norm_backward_add_op();
/// grad, x, mean, var, gamma, beta, y, addend -> dx, dgamma, dbeta, dresidual: batch_norm_backward of grad + addend, with a residual.
const OpDef& add_batch_norm_backward_op();

std::vector<Value> add_layer_norm(Value x, Value residual, Value gamma, Value beta, const AddLayerNormAttrs& attrs);
std::vector<Value> add_rms_norm(Value x, Value residual, Value weight, const AddRmsNormAttrs& attrs);
std::vector<Value> layer_norm_backward_add(Value grad, Value x, Value mean, Value rstd, Value gamma, Value addend,
                                           const LayerNormBackwardAttrs& attrs);
std::vector<Value> rms_norm_backward_add(Value grad, Value x, Value rstd, Value weight, Value addend, const RmsNormAttrs& attrs);
std::vector<Value> add_batch_norm_backward(const std::vector<Value>& inputs, const BatchNormBackwardAttrs& attrs);

/// Registers the operators, once.
void ensure_residual_norm_operators();

/// kBeforeLayout: layer norms and root mean square norms add the residual that they read; their backward operators add the other gradient
/// of their input, and those of batch norms with a residual the two gradients of their output. The results of layer norms have the same
/// bits, gradients the same up to the rounding of the sum.
PassReport use_residual_norms(Graph& graph, const Target& target);

}  // namespace galley
