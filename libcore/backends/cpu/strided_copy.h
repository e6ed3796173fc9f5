#pragma once
// Copies between two strided places in memory, of elements of any size: what slices, concatenations, permutations, reorders and broadcasts
// are. Dimensions that walk alike are joined, contiguous runs are copied whole, transpositions go tile by tile; memory's speed is the goal.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "libcore/graph/tensor_type.h"

namespace galley {

/// A run of bytes whose length is known late and often short: 16 bytes at a time, the last ones overlapping; long ones by the library.
inline void copy_run(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes < 16 || bytes > 256) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t i = 0; i + 16 <= bytes; i += 16) std::memcpy(to + i, from + i, 16);
  std::memcpy(to + bytes - 16, from + bytes - 16, 16);
}

/// `bytes` of a repeated pattern of 64 bytes, from its start.
inline void fill_run(std::byte* to, const std::array<std::byte, 64>& pattern, int64_t bytes) {
  while (bytes >= 64) {
    std::memcpy(to, pattern.data(), 64);
    to += 64;
    bytes -= 64;
  }
  if (bytes > 0) std::memcpy(to, pattern.data(), static_cast<size_t>(bytes));
}

/// One dimension of a copy: how many, and how far apart in elements on both sides. `from` 0 repeats.
struct CopyDim {
  int64_t size = 1, from = 0, to = 0;
};

/// The most dimensions of a copy: those of an array, one of which may be divided in two.
inline constexpr size_t kMostCopyDims = Shape::kMaxRank + 1;

class StridedCopy {
 public:
  /// `element` bytes each (1, 2, 4 or 8); targets must not overlap.
  StridedCopy(int64_t element, std::vector<CopyDim> dims);
  /// Runs on the compute threads, by equal shares of the target.
  void run(const std::byte* from, std::byte* to) const;

 private:
  void run_rows(const std::byte* from, std::byte* to) const;
  void run_tiles(const std::byte* from, std::byte* to) const;

  std::vector<CopyDim> outer_;  // steps in bytes from here on
  CopyDim inner_;               // of runs; of tiles: the one along which the target is contiguous
  CopyDim across_;              // of tiles: the one along which the source is contiguous
  int64_t bytes_ = 0;           // of a run or element
  int64_t element_ = 0;         // its bytes where runs are single elements, else 0
  bool empty_ = false, tiled_ = false;
};

/// The dimensions of an array's copy into another of the same shape, each in its (plain) format.
std::vector<CopyDim> copy_dims(const TensorType& from, const TensorType& to);

}  // namespace galley
