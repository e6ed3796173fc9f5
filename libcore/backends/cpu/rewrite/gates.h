#pragma once
// Gradients of a channel gate (squeeze-and-excitation, Hu et al. 2018), where an array is multiplied by a function of its own mean over the
// pixels. fuse_gates (rewrites.h) makes these operators.

#include "libcore/ops/binary.h"
#include "libcore/ops/norm.h"

namespace galley {

const OpDef& sum_products_op();
const OpDef& gated_batch_norm_backward_op();

/// sum_to of a b, of one shape.
Value sum_products(Value a, Value b, const ShapeAttrs& attrs);
/// (dx, dgamma, dbeta) of batch_norm_backward, where the gradient of the norm's result is grad gate + spread / pixels; gate and spread
/// [N,C,1,..]. The attributes name no residual.
std::vector<Value> gated_batch_norm_backward(Value grad, Value x, Value mean, Value var, Value gamma, Value beta, Value gate, Value spread,
                                             const BatchNormBackwardAttrs& attrs);

}  // namespace galley
