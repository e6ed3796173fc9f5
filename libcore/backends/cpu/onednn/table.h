#pragma once
// The vendor's kernels of each family, each in its file.

#include <span>

#include "libcore/backends/table.h"

namespace galley {

std::span<const Kernel> onednn_conv();
std::span<const Kernel> onednn_matmul();
std::span<const Kernel> onednn_reorder();

}  // namespace galley
