#pragma once
// PixelGrid: where the pixels of a transformed image lie in the image that it was made from. Used to draw a model's result on the original.

#include <cstdint>

#include "libcore/data/resample.h"

namespace galley {

/// A grid of pixels in the coordinates of the original image, whose pixel (y, x) covers the square from (y, x) to (y + 1, x + 1). Pixel
/// (y, x) of the grid covers the rectangle from (top + y * step_y, left + x * step_x) to the same point one step further. Steps are
/// negative after a flip. The grid may reach beyond the original.
struct PixelGrid {
  PixelGrid() = default;
  /// The pixels of the original itself.
  PixelGrid(int64_t image_height, int64_t image_width)
      : height(image_height),
        width(image_width),
        rows{0, static_cast<double>(image_height)},
        columns{0, static_cast<double>(image_width)} {}

  /// The same area in another number of pixels.
  void resize(int64_t new_height, int64_t new_width);
  /// The part `region`, in pixels of this grid; it may reach beyond it, as a region of crop() does.
  void crop(const Region& region);
  void flip_horizontal();
  void flip_vertical();

  /// The row, or column, of the grid that covers the centre of row y, or column x, of the original; -1 where none does. What a crop removed
  /// stays removed, also where a later pad makes the grid cover it again.
  int64_t row_at(int64_t y) const;
  int64_t column_at(int64_t x) const;

  int64_t height = 0, width = 0;
  double top = 0, left = 0, step_y = 1, step_x = 1;
  struct Range {
    double begin = 0, end = 0;
  };
  Range rows, columns;  // the part of the original that every crop kept
};

}  // namespace galley
