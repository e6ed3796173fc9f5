#pragma once
// The kernels of the CUDA back end, by family, in order of preference.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cuda_elementwise();

}  // namespace galley
