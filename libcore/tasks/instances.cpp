#include "libcore/tasks/instances.h"

#include <algorithm>
#include <cmath>

namespace galley {
namespace {

/// An axis along which cells, with one of zeros at each end, are resized to pixels first .. last of the image.
struct ResizedCells {
  ResizedCells(int64_t side, double low, double high) : cells(side + 2) {
    const double middle = (low + high) * 0.5, half = (high - low) * 0.5 * (static_cast<double>(cells) / static_cast<double>(side));
    first = static_cast<int64_t>(middle - half);
    pixels = std::max<int64_t>(1, static_cast<int64_t>(middle + half) - first + 1);
  }
  /// The two cells that a pixel of the image is between, of the inner ones from 0, and the weight of the second.
  struct Between {
    int64_t low = 0, high = 0;
    double fraction = 0;
  };
  Between at(int64_t pixel) const {
    const double source =
        std::max(0.0, (static_cast<double>(pixel - first) + 0.5) * (static_cast<double>(cells) / static_cast<double>(pixels)) - 0.5);
    const int64_t low = std::min(static_cast<int64_t>(source), cells - 1), high = std::min(low + 1, cells - 1);
    return {low - 1, high - 1, source - static_cast<double>(low)};
  }
  int64_t begin() const { return std::max<int64_t>(first, 0); }
  int64_t end(int64_t size) const { return std::min(first + pixels, size); }

  int64_t cells, first = 0, pixels = 1;
};

}  // namespace

RunLengths mask_in_image(const float* cells, int64_t side, const std::array<double, 4>& box, int64_t height, int64_t width) {
  const ResizedCells across(side, box[0], box[2]), down(side, box[1], box[3]);
  const auto cell = [&](int64_t row, int64_t column) {
    const bool inside = row >= 0 && column >= 0 && row < side && column < side;
    return inside ? static_cast<double>(cells[row * side + column]) : 0.0;
  };
  RunLengths mask{.height = height, .width = width, .counts = {}};
  int64_t last = 0;  // where the current run began
  bool value = false;
  const auto put = [&](int64_t at, bool one) {
    if (one == value) return;
    mask.counts.push_back(static_cast<uint32_t>(at - last));
    last = at;
    value = one;
  };
  for (int64_t x = across.begin(); x < across.end(width); ++x) {
    const ResizedCells::Between column = across.at(x);
    for (int64_t y = down.begin(); y < down.end(height); ++y) {
      const ResizedCells::Between row = down.at(y);
      const auto along = [&](int64_t r) { return cell(r, column.low) * (1 - column.fraction) + cell(r, column.high) * column.fraction; };
      put(x * height + y, along(row.low) * (1 - row.fraction) + along(row.high) * row.fraction > 0.5);
    }
    if (down.end(height) < height) put(x * height + std::max(down.end(height), down.begin()), false);
    if (down.begin() > 0 && x + 1 < across.end(width)) put((x + 1) * height, false);
  }
  if (across.end(width) < width) put(std::max<int64_t>(across.end(width), 0) * height, false);
  const int64_t all = height * width;
  if (last < all || mask.counts.empty()) mask.counts.push_back(static_cast<uint32_t>(all - last));
  return mask;
}

KeypointNames usual_keypoints(size_t count) {
  KeypointNames names;
  if (count == 17) {
    names.names = {"nose",           "left_eye",   "right_eye",   "left_ear",   "right_ear",   "left_shoulder",
                   "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist", "left_hip",
                   "right_hip",      "left_knee",  "right_knee",  "left_ankle", "right_ankle"};
    names.skeleton = {{15, 13}, {13, 11}, {16, 14}, {14, 12}, {11, 12}, {5, 11}, {6, 12}, {5, 6}, {5, 7}, {6, 8},
                      {7, 9},   {8, 10},  {1, 2},   {0, 1},   {0, 2},   {1, 3},  {2, 4},  {3, 5}, {4, 6}};
    return names;
  }
  for (size_t i = 0; i < count; ++i) names.names.push_back(std::to_string(i));
  return names;
}

void draw_mask(Image& image, const RunLengths& mask, Color color) {
  GALLEY_ASSERT(mask.height == image.height() && mask.width == image.width() && image.channels() == 3);
  std::vector<uint8_t> pixels(static_cast<size_t>(image.area()));
  mask.draw(pixels.data());
  uint8_t* to = image.as<uint8_t>();
  for (const uint8_t inside : pixels) {
    for (size_t c = 0; c < 3 && inside != 0; ++c) to[c] = static_cast<uint8_t>((to[c] + color[c]) / 2);
    to += 3;
  }
}

void draw_keypoints(Image& image, const std::vector<double>& points, const std::vector<bool>& shown, const KeypointNames& names,
                    Color color, int64_t thickness) {
  const auto dot = [&](double x, double y, int64_t size, Color of) {
    fill_box(image, std::lround(x - static_cast<double>(size) / 2), std::lround(y - static_cast<double>(size) / 2), size, size, of);
  };
  for (const auto& [from, to] : names.skeleton) {
    const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
    if (!shown[a] || !shown[b]) continue;
    const double dx = points[2 * b] - points[2 * a], dy = points[2 * b + 1] - points[2 * a + 1];
    const auto steps = static_cast<int64_t>(std::ceil(std::max(std::abs(dx), std::abs(dy))));
    for (int64_t step = 0; step <= steps; ++step) {
      const double t = steps == 0 ? 0 : static_cast<double>(step) / static_cast<double>(steps);
      dot(points[2 * a] + t * dx, points[2 * a + 1] + t * dy, thickness, color);
    }
  }
  for (size_t k = 0; k < shown.size(); ++k) {
    if (!shown[k]) continue;
    dot(points[2 * k], points[2 * k + 1], 3 * thickness, {255, 255, 255});
    dot(points[2 * k], points[2 * k + 1], 2 * thickness, color);
  }
}

}  // namespace galley
