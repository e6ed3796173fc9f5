#pragma once
// The kernels of ops/instances.h.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_instances();

}  // namespace galley
