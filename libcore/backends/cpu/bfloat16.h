#pragma once
// bf16 in memory, float in registers: kernels that are templates on the element type read and write either.

#include <bit>
#include <cstdint>

#include "libcore/backends/cpu/vector_math.h"

namespace galley {

/// Sixteen bits: the upper half of a float. Branch-free both ways, so that loops over it become vector code.
struct BFloat16 {
  uint16_t bits;

  GALLEY_INLINE operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  /// Rounds to nearest even; NaN stays NaN.
  GALLEY_INLINE BFloat16& operator=(float value) {
    const auto whole = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = whole + 0x7fffu + ((whole >> 16) & 1u), quiet = whole | 0x400000u;
    bits = static_cast<uint16_t>((value == value ? rounded : quiet) >> 16);
    return *this;
  }
};

}  // namespace galley
