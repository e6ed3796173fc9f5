#pragma once
// The weight gradient of dense convolutions, by conv_weights.cpp; listed with the depthwise one.

#include "libcore/kernels/kernel.h"

namespace galley {

const Kernel& conv_weights_kernel();

}  // namespace galley
