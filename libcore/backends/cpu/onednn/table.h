#pragma once
// Kernels of oneDNN for operators that otherwise have only the reference. Those of convolutions and matrix products are rows of
// conv_algorithms.cpp and matmul_algorithms.cpp.

#include <span>
#include <string>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> onednn_reorder();

/// As onednn::version_and_file, for files that do not include oneDNN's headers.
std::string onednn_version_and_file();

}  // namespace galley
