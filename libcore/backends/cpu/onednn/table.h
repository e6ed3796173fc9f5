#pragma once
// Kernels of oneDNN for operators that otherwise have only the reference. Those of convolutions and matrix products are rows of
// conv_algorithms.cpp and matmul_algorithms.cpp.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> onednn_reorder();

}  // namespace galley
