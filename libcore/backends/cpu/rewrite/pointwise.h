#pragma once
// A 1x1 convolution and the batch norm that reads it as one operator: the gradient between the two is never written to memory, nor, where a
// depthwise convolution follows, the output of the 1x1 convolution. The rewrite fuse_pointwise (rewrites.h) creates these operators.

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "libcore/ops/norm.h"

namespace galley {

const OpDef& pointwise_batch_norm_depthwise_op();
const OpDef& pointwise_batch_norm_backward_op();
const OpDef& pointwise_batch_norm_depthwise_backward_op();

struct PointwiseBatchNormDepthwise {
  Value y, mean, var;
  Value moments;  // f32 [C+1,C]: the mean of x's channels, and below it their covariance (biased), of which mean and var follow
};

/// The type of these moments.
TensorType moments_type(const TensorType& x);

/// batch_norm_depthwise(between, depthwise) of between = conv2d(x, weight) [N,O,H,W], x [N,C,H,W] and weight [O,C,1,1], stride 1.
PointwiseBatchNormDepthwise pointwise_batch_norm_depthwise(Value x, Value weight, Value depthwise, Value gamma, Value beta,
                                                           const BatchNormDepthwiseAttrs& attrs = {});
/// The gradients (dx, dweight, dgamma, dbeta[, dresidual]) of y = batch_norm(between), between as above; y as for batch_norm_backward.
std::vector<Value> pointwise_batch_norm_backward(Value grad, Value between, Value mean, Value var, Value gamma, Value beta, Value y,
                                                 Value x, Value weight, const BatchNormBackwardAttrs& attrs);
/// The gradients (dx, dweight, ddepthwise, dgamma, dbeta) of y = batch_norm_depthwise(between, depthwise), between as above; a residual is
/// added to dx. The moments of x are summed again if they are not given.
std::vector<Value> pointwise_batch_norm_depthwise_backward(Value grad, Value depthwise, Value mean, Value var, Value gamma, Value beta,
                                                           Value x, Value weight, const BatchNormDepthwiseAttrs& attrs, Value residual = {},
                                                           Value moments = {});

}  // namespace galley
