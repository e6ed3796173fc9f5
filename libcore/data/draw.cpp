#include "libcore/data/draw.h"

#include <algorithm>
#include <cmath>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wuseless-cast"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wshadow"
#define STB_TRUETYPE_IMPLEMENTATION
#define STBTT_STATIC
#include <stb/stb_truetype.h>
#pragma GCC diagnostic pop

// The font's file, as the build found it (cmake/GalleyDependencies.cmake).
asm(R"(
    .section .rodata
    .balign 16
    .global galley_font_file
galley_font_file:
    .incbin ")" GALLEY_FONT_FILE R"("
    .byte 0
    .previous
)");
extern "C" const unsigned char galley_font_file[];

namespace galley {
namespace {

const stbtt_fontinfo& font() {
  static const stbtt_fontinfo info = [] {
    stbtt_fontinfo made{};
    GALLEY_ASSERT(stbtt_InitFont(&made, galley_font_file, stbtt_GetFontOffsetForIndex(galley_font_file, 0)) != 0, "not a font");
    return made;
  }();
  return info;
}

/// The code points of UTF-8 text; an invalid byte becomes U+FFFD.
std::vector<int> code_points(std::string_view text) {
  constexpr int kReplacement = 0xFFFD;
  std::vector<int> points;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at]);
    const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
    int point = size == 1 ? lead : lead & (0xFF >> (size + 1));
    bool valid = size > 0 && at + size <= text.size();
    for (size_t i = 1; i < size && valid; ++i) {
      const auto next = static_cast<uint8_t>(text[at + i]);
      valid = (next & 0xC0) == 0x80;
      point = point << 6 | (next & 0x3F);
    }
    points.push_back(valid ? point : kReplacement);
    at += valid ? size : 1;
  }
  return points;
}

/// visit(code point, pen in pixels) for each letter; returns the width.
template <class Visit>
double lay_out(std::string_view text, int64_t height, const Visit& visit) {
  const double scale = static_cast<double>(stbtt_ScaleForPixelHeight(&font(), static_cast<float>(height)));
  const std::vector<int> points = code_points(text);
  double pen = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    visit(points[i], pen);
    int advance = 0, bearing = 0;
    stbtt_GetCodepointHMetrics(&font(), points[i], &advance, &bearing);
    const int kern = i + 1 < points.size() ? stbtt_GetCodepointKernAdvance(&font(), points[i], points[i + 1]) : 0;
    pen += scale * (advance + kern);
  }
  return pen;
}

}  // namespace

std::vector<Color> voc_palette() {
  std::vector<Color> palette;
  for (int index = 0; index < 256; ++index) {
    Color color{0, 0, 0};
    for (int rest = index, shift = 7; rest > 0; rest >>= 3, --shift)
      for (int channel = 0; channel < 3; ++channel)
        color[static_cast<size_t>(channel)] |= static_cast<uint8_t>(((rest >> channel) & 1) << shift);
    palette.push_back(color);
  }
  return palette;
}

void fill_box(Image& image, int64_t left, int64_t top, int64_t width, int64_t height, Color color) {
  const int64_t right = std::min(left + width, image.width()), bottom = std::min(top + height, image.height());
  for (int64_t y = std::max<int64_t>(top, 0); y < bottom; ++y)
    for (int64_t x = std::max<int64_t>(left, 0); x < right; ++x) std::copy(color.begin(), color.end(), image.row<uint8_t>(y) + x * 3);
}

void draw_box(Image& image, double left, double top, double right, double bottom, Color color, int64_t thickness) {
  const auto x1 = static_cast<int64_t>(std::lround(left)), y1 = static_cast<int64_t>(std::lround(top));
  const int64_t width = static_cast<int64_t>(std::lround(right)) - x1, height = static_cast<int64_t>(std::lround(bottom)) - y1;
  const int64_t across = std::min(thickness, width), down = std::min(thickness, height);
  fill_box(image, x1, y1, width, down, color);
  fill_box(image, x1, y1 + height - down, width, down, color);
  fill_box(image, x1, y1, across, height, color);
  fill_box(image, x1 + width - across, y1, across, height, color);
}

int64_t text_width(std::string_view text, int64_t height) {
  return static_cast<int64_t>(std::ceil(lay_out(text, height, [](int, double) {})));
}

void draw_text(Image& image, int64_t left, int64_t top, std::string_view text, Color color, int64_t height) {
  const float scale = stbtt_ScaleForPixelHeight(&font(), static_cast<float>(height));
  int ascent = 0, descent = 0, gap = 0;
  stbtt_GetFontVMetrics(&font(), &ascent, &descent, &gap);
  const int64_t baseline = top + static_cast<int64_t>(std::lround(static_cast<double>(scale) * ascent));
  lay_out(text, height, [&](int point, double pen) {
    int x0 = 0, y0 = 0, x1 = 0, y1 = 0;
    const double whole = std::floor(pen);
    const auto shift = static_cast<float>(pen - whole);
    stbtt_GetCodepointBitmapBoxSubpixel(&font(), point, scale, scale, shift, 0, &x0, &y0, &x1, &y1);
    if (x1 <= x0 || y1 <= y0) return;
    std::vector<uint8_t> cover(static_cast<size_t>(x1 - x0) * static_cast<size_t>(y1 - y0));
    stbtt_MakeCodepointBitmapSubpixel(&font(), cover.data(), x1 - x0, y1 - y0, x1 - x0, scale, scale, shift, 0, point);
    for (int y = 0; y < y1 - y0; ++y) {
      for (int x = 0; x < x1 - x0; ++x) {
        const int64_t row = baseline + y0 + y, column = left + static_cast<int64_t>(whole) + x0 + x;
        if (row < 0 || row >= image.height() || column < 0 || column >= image.width()) continue;
        const int share = cover[static_cast<size_t>(y) * static_cast<size_t>(x1 - x0) + static_cast<size_t>(x)];
        uint8_t* pixel = image.row<uint8_t>(row) + column * 3;
        for (size_t c = 0; c < 3; ++c) pixel[c] = static_cast<uint8_t>((pixel[c] * (255 - share) + color[c] * share + 127) / 255);
      }
    }
  });
}

}  // namespace galley
