#include "libcore/data/pixel_grid.h"

#include <algorithm>
#include <cmath>

namespace galley {
namespace {

int64_t index_at(int64_t original, double start, double step, int64_t size) {
  const double at = std::floor((static_cast<double>(original) + 0.5 - start) / step);
  return at >= 0 && at < static_cast<double>(size) ? static_cast<int64_t>(at) : -1;
}

/// Restricts `kept` to the area of the grid along one axis.
void intersect(PixelGrid::Range& kept, double start, double step, int64_t size) {
  const double stop = start + step * static_cast<double>(size);
  kept = {std::max(kept.begin, std::min(start, stop)), std::min(kept.end, std::max(start, stop))};
}

bool contains(const PixelGrid::Range& kept, int64_t original) {
  const double center = static_cast<double>(original) + 0.5;
  return center >= kept.begin && center < kept.end;
}

}  // namespace

void PixelGrid::resize(int64_t new_height, int64_t new_width) {
  step_y *= static_cast<double>(height) / static_cast<double>(new_height);
  step_x *= static_cast<double>(width) / static_cast<double>(new_width);
  height = new_height;
  width = new_width;
}

void PixelGrid::crop(const Region& region) {
  top += step_y * static_cast<double>(region.top);
  left += step_x * static_cast<double>(region.left);
  height = region.height;
  width = region.width;
  intersect(rows, top, step_y, height);
  intersect(columns, left, step_x, width);
}

void PixelGrid::flip_horizontal() {
  left += step_x * static_cast<double>(width);
  step_x = -step_x;
}

void PixelGrid::flip_vertical() {
  top += step_y * static_cast<double>(height);
  step_y = -step_y;
}

int64_t PixelGrid::row_at(int64_t y) const { return contains(rows, y) ? index_at(y, top, step_y, height) : -1; }
int64_t PixelGrid::column_at(int64_t x) const { return contains(columns, x) ? index_at(x, left, step_x, width) : -1; }

}  // namespace galley
