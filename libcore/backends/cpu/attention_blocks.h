#pragma once
// Blocks of query rows of attention_tiles.cpp, and the keys that each may read.

#include <algorithm>
#include <cstdint>

#include "libcore/backends/cpu/attention_tiles.h"

namespace galley::attention_tiles {

constexpr int64_t kUnlimited = int64_t{1} << 40;

inline int64_t rounded_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

/// A block of query rows: which of them exist, and the keys that one of them may read.
struct Block {
  int64_t b, h, row, rows;      // rows: those that exist and are not padding
  int64_t written;              // rows that exist
  int64_t position;             // of query `row`
  int64_t first_key, last_key;  // [first, last)
};

template <class T>
Block block_of(const Problem& p, const Arrays<T>& a, const Rows& r, int64_t most) {
  Block block{r.b, r.h, r.row, 0, std::min(most, p.queries - r.row), 0, 0, 0};
  const int64_t start = a.position == nullptr ? 0 : a.position[r.b];
  const int64_t length = a.lengths == nullptr ? p.keys : std::clamp<int64_t>(a.lengths[r.b], 0, p.keys);
  block.position = start + r.row;
  block.rows = p.pad_queries ? std::clamp<int64_t>(length - block.position, 0, block.written) : block.written;
  const int64_t last = block.position + block.rows - 1;  // position of the last row
  block.last_key = p.causal ? std::min(length, last + 1) : p.window > 0 ? std::min(length, last + p.window) : length;
  if (p.window > 0) block.first_key = std::max<int64_t>(0, block.position - p.window + 1);
  if (block.rows == 0 || block.last_key <= block.first_key) block.first_key = block.last_key = 0;
  return block;
}

}  // namespace galley::attention_tiles
