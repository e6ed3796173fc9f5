#pragma once
// The kernel of orthonormal_columns.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_orthonormal();

}  // namespace galley
