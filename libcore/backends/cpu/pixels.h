#pragma once
// The kernel of normalize_pixels.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_pixels();

}  // namespace galley
