#pragma once
// Products of tiles of 16 rows of 64 bytes: by the tile unit (Intel AMX), or emulated, so that kernels that pack for it are tested on every
// machine. Kernels are templates over the two. There are eight tiles, all of full size. (Intel SDM volume 2: TDPBF16PS, TDPBUSD.)

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "libcore/backends/cpu/vector_math.h"

namespace galley::amx {

constexpr int64_t kRows = 16, kBytes = 64, kSize = kRows * kBytes;

/// The unit's own instructions, where tile_unit() has them; by name: the compiler's intrinsics require that the whole function is compiled
/// for AMX. AT&T order: sum last. Rows are `stride` bytes apart.
struct Hardware {
  GALLEY_INLINE void begin() const {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes, kBytes};
      uint8_t rows[16] = {kRows, kRows, kRows, kRows, kRows, kRows, kRows, kRows};
    } config;
    __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  GALLEY_INLINE void end() const { __asm__ volatile("tilerelease" : :); }
  template <int kTile>
  GALLEY_INLINE void clear() const {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  GALLEY_INLINE void load(const void* from, int64_t stride) const {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  GALLEY_INLINE void store(void* to, int64_t stride) const {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  /// Adds products of unsigned bytes (left) and signed bytes (right), in quads, to sums of i32.
  template <int kSum, int kLeft, int kRight>
  GALLEY_INLINE void multiply_bytes() const {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
  /// Adds products of bf16, left [16][32] and right [16 pairs][16][2], to sums of f32.
  template <int kSum, int kLeft, int kRight>
  GALLEY_INLINE void multiply_bf16() const {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

/// The tile products of Hardware in plain C++, without products of bytes.
class Emulated {
 public:
  void begin() { std::memset(tiles_, 0, sizeof tiles_); }
  void end() { std::memset(tiles_, 0xFF, sizeof tiles_); }
  template <int kTile>
  void clear() {
    std::memset(tiles_[kTile], 0, kSize);
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    for (int64_t row = 0; row < kRows; ++row)
      std::memcpy(tiles_[kTile] + row * kBytes, static_cast<const char*>(from) + row * stride, kBytes);
  }
  template <int kTile>
  void store(void* to, int64_t stride) const {
    for (int64_t row = 0; row < kRows; ++row) std::memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile] + row * kBytes, kBytes);
  }
  /// Intel SDM vol. 2, TDPBF16PS: products of the pairs' first values are summed by themselves, those of the second values too, then both
  /// are added, and what the tile held last; each step rounds to nearest, and numbers below f32's normal ones are zeros.
  template <int kSum, int kLeft, int kRight>
  void multiply_bf16() {
    constexpr int64_t kColumns = kBytes / 4;
    uint32_t left[kRows][kColumns], right[kRows][kColumns];
    float sums[kRows][kColumns];
    std::memcpy(left, tiles_[kLeft], kSize);
    std::memcpy(right, tiles_[kRight], kSize);
    std::memcpy(sums, tiles_[kSum], kSize);
    for (int64_t m = 0; m < kRows; ++m) {
      float totals[2][kColumns] = {};
      for (int64_t k = 0; k < kRows; ++k) {
        for (int64_t n = 0; n < kColumns; ++n) {
          totals[0][n] = flushed(totals[0][n] + first(left[m][k]) * first(right[k][n]));  // the product is exact
          totals[1][n] = flushed(totals[1][n] + second(left[m][k]) * second(right[k][n]));
        }
      }
      for (int64_t n = 0; n < kColumns; ++n) sums[m][n] = flushed(flushed(sums[m][n]) + flushed(totals[0][n] + totals[1][n]));
    }
    std::memcpy(tiles_[kSum], sums, kSize);
  }

 private:
  static float flushed(float value) { return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value; }
  static float first(uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
  static float second(uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xFFFF0000u)); }

  alignas(64) char tiles_[8][kSize];
};

}  // namespace galley::amx
