#pragma once
// A matrix product whose right operand is packed once and used many times, with rows of the left operand that may be far apart: recurrent
// layers, 1x1 convolutions, Winograd's products. One thread sums each element in the order of its depth, so the bits depend neither on the
// threads nor on how the rows are divided.

#include <cstdint>

namespace galley {

/// Columns of a panel: packed matrices are [panel][depth][kPanel], the last panel filled up with zeros.
constexpr int64_t kPanel = 16;
constexpr int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
constexpr int64_t packed_floats(int64_t columns, int64_t depth) { return panels_of(columns) * kPanel * depth; }

/// b[k][c] = from[k * depth_step + c * column_step], on the compute threads.
struct PackSource {
  const float* from;
  int64_t columns, depth, column_step, depth_step;
};
void pack_matrix(const PackSource& source, float* packed);

/// c[row][column] = (initial ? initial[column] : c[row][column]) + sum over k of a[row][k] b[k][column], for rows [0, rows) and the columns
/// of panels [first, last). `initial` is readable up to the end of its last panel. On the calling thread.
struct PackedProduct {
  const float* a;
  int64_t a_step, rows, depth;  // a_step: floats from row to row
  const float* packed;
  float* c;
  int64_t c_step, columns;
  const float* initial = nullptr;
  int64_t first = 0, last = 0;
  int64_t a_ahead = 0;          // rows from those that are read to those that are prefetched; rows of `a` must be consecutive then. 0: none
  int64_t ahead = 0;            // rows from those that are written to those of c that are prefetched; 0: none
  int64_t panel_step = kPanel;  // floats from panel to panel of c
  bool relu = false;            // applied to the sums
};
void multiply_packed(const PackedProduct& product);

}  // namespace galley
