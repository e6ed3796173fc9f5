#pragma once
// Kernels of oneDNN for operators that otherwise have only the reference. Those of convolutions and matrix products are rows of
// conv_algorithms.cpp and matmul_algorithms.cpp.

#include <span>
#include <string>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> onednn_reorder();

/// "oneDNN 3.2.0, avx2, /usr/lib/libdnnl.so.3"
std::string onednn_version();

}  // namespace galley
