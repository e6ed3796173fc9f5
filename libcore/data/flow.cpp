#include "libcore/data/flow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "libcore/data/sample.h"

namespace galley {
namespace {

constexpr std::string_view kMagic = "PIEH";  // 202021.25 as a float, in the byte order that the format prescribes
constexpr int64_t kHeader = 12, kMostPixels = int64_t{1} << 26;

/// The colors of the wheel: six arcs from red over yellow, green, cyan, blue and magenta, in each of which one component rises or falls.
std::vector<std::array<double, 3>> color_wheel() {
  struct Arc {
    int length, high, moving;
    bool rises;
  };
  constexpr Arc kArcs[] = {{15, 0, 1, true}, {6, 1, 0, false}, {4, 1, 2, true}, {11, 2, 1, false}, {13, 2, 0, true}, {6, 0, 2, false}};
  std::vector<std::array<double, 3>> wheel;
  for (const Arc& arc : kArcs) {
    for (int i = 0; i < arc.length; ++i) {
      std::array<double, 3> color{0, 0, 0};
      const double step = std::floor(255.0 * i / arc.length);
      color[static_cast<size_t>(arc.high)] = 255;
      color[static_cast<size_t>(arc.moving)] = arc.rises ? step : 255 - step;
      wheel.push_back(color);
    }
  }
  return wheel;
}

}  // namespace

Image parse_flo(std::span<const std::byte> file, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (file.size() < kHeader || !text.starts_with(kMagic))
    throw BadSample("format", name, "not a .flo file, which begins with the letters PIEH, its width and its height");
  int32_t width = 0, height = 0;
  std::memcpy(&width, file.data() + 4, 4);
  std::memcpy(&height, file.data() + 8, 4);
  if (width < 1 || height < 1 || static_cast<int64_t>(width) * height > kMostPixels)
    throw BadSample("size", name, cat("the header says ", width, " x ", height, " pixels; expected 1 to ", kMostPixels, " in all"));
  const int64_t pixels = static_cast<int64_t>(width) * height, expected = kHeader + 8 * pixels;
  if (static_cast<int64_t>(file.size()) != expected)
    throw BadSample("size", name,
                    cat("the file has ", file.size(), " bytes, but ", width, " x ", height, " pixels (its header) take ", expected));
  Image flow(DType::kF32, height, width, 3);
  float* to = flow.as<float>();
  for (int64_t i = 0; i < pixels; ++i, to += 3) {
    std::memcpy(to, file.data() + kHeader + 8 * i, 8);
    const bool known = std::abs(to[0]) <= kUnknownFlow && std::abs(to[1]) <= kUnknownFlow;  // not NaN either
    if (!known) to[0] = to[1] = 0;
    to[2] = known ? 1 : 0;
  }
  return flow;
}

std::string encode_flo(const Image& flow) {
  constexpr float kUnknown = 10 * kUnknownFlow;
  std::string file(kMagic);
  for (const int64_t size : {flow.width(), flow.height()}) {
    const auto number = static_cast<int32_t>(size);
    file.append(reinterpret_cast<const char*>(&number), 4);
  }
  const float* from = flow.as<float>();
  for (int64_t i = 0; i < flow.area(); ++i, from += 3) {
    for (int c = 0; c < 2; ++c) {
      const float value = from[2] > 0 ? from[c] : kUnknown;
      file.append(reinterpret_cast<const char*>(&value), 4);
    }
  }
  return file;
}

Image moved_flow(const Image& flow, const PixelGrid& grid) {
  Image out(DType::kF32, grid.height, grid.width, 3);
  const auto inside = [](const PixelGrid::Range& kept, double center) { return center > kept.begin && center < kept.end; };
  const auto scale_x = static_cast<float>(1 / grid.step_x), scale_y = static_cast<float>(1 / grid.step_y);
  for (int64_t y = 0; y < out.height(); ++y) {
    const double row = grid.top + (static_cast<double>(y) + 0.5) * grid.step_y;
    for (int64_t x = 0; x < out.width(); ++x) {
      float* to = out.row<float>(y) + 3 * x;
      to[0] = to[1] = to[2] = 0;
      const double column = grid.left + (static_cast<double>(x) + 0.5) * grid.step_x;
      if (!inside(grid.rows, row) || !inside(grid.columns, column)) continue;
      const double down = std::clamp(row - 0.5, 0.0, static_cast<double>(flow.height() - 1));
      const double right = std::clamp(column - 0.5, 0.0, static_cast<double>(flow.width() - 1));
      const auto y0 = static_cast<int64_t>(down), x0 = static_cast<int64_t>(right);
      const int64_t y1 = std::min(y0 + 1, flow.height() - 1), x1 = std::min(x0 + 1, flow.width() - 1);
      const float *a = flow.row<float>(y0) + 3 * x0, *b = flow.row<float>(y0) + 3 * x1, *c = flow.row<float>(y1) + 3 * x0,
                  *d = flow.row<float>(y1) + 3 * x1;
      const auto fy = static_cast<float>(down - static_cast<double>(y0)), fx = static_cast<float>(right - static_cast<double>(x0));
      if (std::min({a[2], b[2], c[2], d[2]}) > 0) {
        for (int i = 0; i < 2; ++i) to[i] = (1 - fy) * ((1 - fx) * a[i] + fx * b[i]) + fy * ((1 - fx) * c[i] + fx * d[i]);
        to[2] = 1;
      } else {
        const float* nearest = fy < 0.5f ? (fx < 0.5f ? a : b) : (fx < 0.5f ? c : d);
        std::copy_n(nearest, 3, to);
      }
      to[0] *= scale_x;
      to[1] *= scale_y;
    }
  }
  return out;
}

Image flow_colors(const Image& flow) {
  static const std::vector<std::array<double, 3>> wheel = color_wheel();
  const auto last = static_cast<double>(wheel.size() - 1);
  const float* from = flow.as<float>();
  double largest = 0;
  for (int64_t i = 0; i < flow.area(); ++i)
    if (from[3 * i + 2] > 0)
      largest = std::max(largest, std::hypot(static_cast<double>(from[3 * i]), static_cast<double>(from[3 * i + 1])));
  largest += static_cast<double>(std::numeric_limits<float>::epsilon());
  Image out(DType::kU8, flow.height(), flow.width(), 3);
  for (int64_t i = 0; i < flow.area(); ++i, from += 3) {
    uint8_t* to = out.as<uint8_t>() + 3 * i;
    std::fill_n(to, 3, uint8_t{0});
    if (!(from[2] > 0)) continue;
    const double right = static_cast<double>(from[0]) / largest, down = static_cast<double>(from[1]) / largest;
    const double place = (std::atan2(-down, -right) / std::numbers::pi + 1) / 2 * last;
    const auto first = static_cast<size_t>(std::clamp(std::floor(place), 0.0, last));
    const size_t second = (first + 1) % wheel.size();
    const double fraction = place - std::floor(place), size = std::hypot(right, down);
    for (size_t c = 0; c < 3; ++c) {
      const double color = ((1 - fraction) * wheel[first][c] + fraction * wheel[second][c]) / 255;
      to[c] = static_cast<uint8_t>(std::clamp(std::floor(255 * (1 - size * (1 - color))), 0.0, 255.0));
    }
  }
  return out;
}

}  // namespace galley
