#pragma once
// Products of many rounded rows with stored integer weights.

#include "libcore/backends/cpu/algorithms.h"

namespace galley::algorithm {

extern const Algorithm kRoundedPanels;  // rounded_panels.cpp

}  // namespace galley::algorithm
