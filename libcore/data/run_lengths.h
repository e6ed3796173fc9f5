#pragma once
// RunLengths: the mask of an object as COCO stores it. Polygons become masks, and masks are compared, by the rules of pycocotools.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// A mask of 0 and 1 as the lengths of its runs, column by column from the top left. The first run is of zeros and may be empty.
struct RunLengths {
  int64_t height = 0, width = 0;
  std::vector<uint32_t> counts;

  /// From pixels [height,width], where all but 0 count as 1.
  static RunLengths of(const uint8_t* pixels, int64_t height, int64_t width);
  /// The pixels inside a closed polygon x0, y0, x1, y1, ... in pixels.
  static RunLengths of_polygon(std::span<const double> points, int64_t height, int64_t width);
  /// From COCO's compressed text. Throws Error (exit 4) if it is damaged, or if its pixels are not height x width.
  static RunLengths of_text(std::string_view text, int64_t height, int64_t width);

  /// Sets pixels [height,width] to 0 and 1.
  void draw(uint8_t* pixels) const;
  std::string text() const;
  int64_t area() const;
  /// The smallest box around the mask: left, top, width, height; zeros for an empty mask.
  std::array<double, 4> box() const;
  friend bool operator==(const RunLengths&, const RunLengths&) = default;
};

/// The pixels of any of the masks, which have equal sizes.
RunLengths united(const std::vector<RunLengths>& masks);
/// Pixels in both masks.
int64_t common_area(const RunLengths& a, const RunLengths& b);

}  // namespace galley
