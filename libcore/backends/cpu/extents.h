#pragma once
// Kernels for images that are smaller than their arrays (ops/extents.h).

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_extents();

}  // namespace galley
