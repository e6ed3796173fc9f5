#pragma once
// Gradients of convolutions that are listed with the depthwise weight gradient.

#include "libcore/kernels/kernel.h"

namespace galley {

const Kernel& conv_weights_kernel();          // the weight gradient of dense ones: conv_weights.cpp
const Kernel& few_channels_weights_kernel();  // that of few input channels: few_channels_weights.cpp
const Kernel& pointwise_weights_kernel();     // that of 1x1 ones of few channels: pointwise_weights.cpp
const Kernel& depthwise_data_kernel();        // the input gradient of strided depthwise ones: depthwise_data.cpp

/// Is it a weight gradient of one group, f32 and channels_last, of arrays that are not empty?
Support is_dense_weight_gradient(const KernelQuery& query);
/// Bytes of sums that threads keep for themselves, at most.
constexpr int64_t kMostPartials = 32 << 20;

}  // namespace galley
