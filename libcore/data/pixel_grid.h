#pragma once
// PixelGrid: maps the pixels of a transformed image to the original image. Used to draw a model's result on the original.

#include <cstdint>

#include "libcore/data/resample.h"

namespace galley {

/// A grid of pixels in the coordinates of the original image, whose pixel (y, x) covers the square from (y, x) to (y + 1, x + 1). Pixel (y,
/// x) of the grid covers the rectangle from (top + y * step_y, left + x * step_x) to (top + (y + 1) * step_y, left + (x + 1) * step_x).
/// Steps are negative after a flip. The grid may extend beyond the original.
struct PixelGrid {
  PixelGrid() = default;
  /// The pixels of the original image.
  PixelGrid(int64_t image_height, int64_t image_width)
      : height(image_height),
        width(image_width),
        rows{0, static_cast<double>(image_height)},
        columns{0, static_cast<double>(image_width)} {}

  /// Covers the same area with another number of pixels.
  void resize(int64_t new_height, int64_t new_width);
  /// Keeps `region`, given in pixels of this grid. It may extend beyond the grid, as for crop() of images.
  void crop(const Region& region);
  /// Mirrors the grid left to right, or top to bottom.
  void flip_horizontal();
  void flip_vertical();

  /// The row (column) of the grid that covers the center of row y (column x) of the original; -1 if none does. Pixels that a crop removed
  /// stay removed, even if a later pad makes the grid cover them again.
  int64_t row_at(int64_t y) const;
  int64_t column_at(int64_t x) const;

  int64_t height = 0, width = 0;
  double top = 0, left = 0, step_y = 1, step_x = 1;
  struct Range {
    double begin = 0, end = 0;
  };
  Range rows, columns;  // the part of the original that remains after all crops
};

}  // namespace galley
