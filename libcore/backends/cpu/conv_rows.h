#pragma once
// The kernels of conv2d_rows and conv2d_backward_data_rows (conv_rows.cpp). table.cpp includes this header besides table.h.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

std::span<const Kernel> cpu_conv_rows();

}  // namespace galley
