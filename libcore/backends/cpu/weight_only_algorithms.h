#pragma once
// Algorithms of weight_only_linear; matmul_algorithms.cpp lists them.

#include "libcore/backends/cpu/algorithms.h"

namespace galley::algorithm {

extern const Algorithm kWeightOnlyInt4;    // weight_only_int4.cpp
extern const Algorithm kWeightOnlyPanels;  // weight_only_panels.cpp

}  // namespace galley::algorithm
