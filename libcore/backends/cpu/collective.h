#pragma once
// Kernels of collectives between ranks (comm/rank_scope.h).

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_collective();

}  // namespace galley
