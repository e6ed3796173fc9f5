#pragma once
// The kernel of linear_rows (linear_rows.cpp). table.cpp includes this header besides table.h.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_linear_rows();

}  // namespace galley
