#pragma once
// The vendor's kernels of each family, each in its file.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

/// All of them.
std::span<const Kernel> onednn_kernels();

std::span<const Kernel> onednn_conv();
std::span<const Kernel> onednn_matmul();
std::span<const Kernel> onednn_reorder();

}  // namespace galley
