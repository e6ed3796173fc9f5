#pragma once
// Division of numbers below 2^31 by a number that the host knows: a product instead of the dozens of instructions of a division.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

/// i / by.value, for i < 2^31 (Granlund, Montgomery 1994).
GALLEY_DEVICE uint32_t quotient(uint32_t i, const Divisor& by) {
  return (static_cast<uint32_t>(static_cast<uint64_t>(i) * by.multiplier >> 32) + i) >> by.shift;
}

}  // namespace galley::device
