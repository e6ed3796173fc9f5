#pragma once
// Pieces of winograd.cpp and winograd_weights.cpp: where tiles are in an image, and their transforms, vectors of channels at a time.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "libcore/backends/cpu/rewrite/winograd.h"
#include "libcore/backends/kernel.h"

namespace galley::winograd {

/// Channels of a row of transformed values: whole panels of 16.
constexpr int64_t padded(int64_t channels) { return (channels + 15) / 16 * 16; }
/// At least `floats` floats, in an odd number of cache lines: arrays at this distance do not share a few sets of the first-level cache. The
/// 36 positions of one row are written together, and the rows of one position read together.
constexpr int64_t odd_lines(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

/// The positions of the tiles of the results [N,H',W',C'] and of the pixels of [N,H,W,C] that they read; both channels_last.
struct Tiling {
  Tiling() = default;
  Tiling(const Shape& x, const Shape& y, std::array<int64_t, 2> pad)
      : images(y[0]), x_rows(x[2]), x_columns(x[3]), channels(x[1]), rows(y[2]), columns(y[3]), outputs(y[1]), padding(pad) {}
  int64_t images = 0, x_rows = 0, x_columns = 0, channels = 0, rows = 0, columns = 0, outputs = 0;
  std::array<int64_t, 2> padding{};
  int64_t across() const { return (columns + kOut - 1) / kOut; }
  int64_t per_image() const { return tiles(rows, columns); }
  int64_t count() const { return images * per_image(); }
  int64_t edge_floats() const { return kPositions * padded(channels); }
};

/// The position of the first result of a tile.
struct Place {
  int64_t image, row, column;
};
inline Place place_of(const Tiling& t, int64_t index) {
  const int64_t n = index / t.per_image(), in_image = index % t.per_image();
  return {n, in_image / t.across() * kOut, in_image % t.across() * kOut};
}

/// A square window of an image [rows][columns][channels] that may reach over its edges.
template <class T>
struct Window {
  const T* image;
  int64_t rows, columns, channels;  // of the image
  int64_t first_row, first_column, size;
  bool inside() const { return first_row >= 0 && first_column >= 0 && first_row + size <= rows && first_column + size <= columns; }
  const T* first() const { return image + (first_row * columns + first_column) * channels; }
  /// Copies the tile to [size][size][pixel], with `outside` outside the image; memory after a pixel's channels is not written.
  void copy(T* to, T outside, int64_t pixel) const {
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j < size; ++j, to += pixel) {
        const int64_t row = first_row + i, column = first_column + j;
        const bool exists = row >= 0 && row < rows && column >= 0 && column < columns;
        if (exists) {
          std::memcpy(to, image + (row * columns + column) * channels, static_cast<size_t>(channels) * sizeof(T));
        } else {
          std::fill_n(to, channels, outside);
        }
      }
    }
  }
};

/// Elements from a value to that of the next row or column of an image.
struct Steps {
  int64_t row, column;
};

/// A tile of results: `m` are its transformed sums, `position` floats from one to the next.
struct ResultTile {
  const float* m;
  int64_t position;
  float* y;               // its first pixel
  const float* residual;  // likewise, or nullptr
  const float* bias;      // or nullptr
  Steps step;
  int64_t rows, columns, channels;  // the rows and columns that exist
  Activation activation;
};

/// Transforms what tile `index` reads of x into `to`, a row of padded(channels) floats at each position. `edge` holds tiling.edge_floats().
void transform_image(const Tiling& tiling, const float* x, int64_t index, float* edge, float* to, int64_t position);
/// The address in y, and the size, of tile `index`.
ResultTile result_tile(const Tiling& tiling, int64_t index, float* y, const float* residual);
void transform_result(const ResultTile& tile);
/// The adjoint of transform_result: the gradient of the results of tile `index`, zero outside the image, into `to`.
void transform_gradient(const Tiling& tiling, const float* grad, int64_t index, float* edge, float* to, int64_t position);

/// Processors whose vectors hold 8 floats or more; for others the kernels decline.
bool has_wide_vectors();

}  // namespace galley::winograd
