#pragma once
// Draws on images: borders of boxes, and text in the font that Galley contains (DejaVu Sans).

#include <string_view>
#include <vector>

#include "libcore/data/codec.h"
#include "libcore/data/image.h"

namespace galley {

/// The 256 colors of Pascal VOC masks: the bits of the index, distributed over red, green and blue from the highest bit down.
std::vector<Color> voc_palette();

/// Draws the border of a box, `thickness` pixels inward, on a u8 image with 3 channels. Parts outside the image are left out.
void draw_box(Image& image, double left, double top, double right, double bottom, Color color, int64_t thickness);
/// Fills a rectangle; parts outside are left out.
void fill_box(Image& image, int64_t left, int64_t top, int64_t width, int64_t height, Color color);

/// Width of a line of UTF-8 text in letters of that height.
int64_t text_width(std::string_view text, int64_t height);
/// Draws a line of UTF-8 text, smoothed, below and right of a point. Letters that the font lacks are boxes.
void draw_text(Image& image, int64_t left, int64_t top, std::string_view text, Color color, int64_t height);

}  // namespace galley
