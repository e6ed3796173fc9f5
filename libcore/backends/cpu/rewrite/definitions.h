#pragma once
// Definitions of the CPU's own operators (OpDef::definition): the sub-graphs that its rewrites replace, which are the oracle of the
// kernels.

#include "libcore/ops/expansion.h"

namespace galley::cpu_definition {

void batch_norm_depthwise(Expansion& e);
void batch_norm_depthwise_backward(Expansion& e);
void sum_products(Expansion& e);
void gated_batch_norm_backward(Expansion& e);
void pointwise_batch_norm_depthwise(Expansion& e);
void pointwise_batch_norm_backward(Expansion& e);
void pointwise_batch_norm_depthwise_backward(Expansion& e);
/// The transform is the definition of what winograd_conv2d reads.
void winograd_weights(Expansion& e);
/// The convolution by the 3 x 3 kernels of which the weight is the transform.
void winograd_conv2d(Expansion& e);
void winograd_conv2d_backward_weights(Expansion& e);
void quantized_winograd_weights(Expansion& e);
void quantized_winograd_conv2d(Expansion& e);

}  // namespace galley::cpu_definition
