#include "libcore/data/run_lengths.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "libcore/base/error.h"

namespace galley {
namespace {

/// Visits the runs of 1 of a mask: visit(first pixel, one past the last), counted column by column.
template <class Visit>
void visit_runs(const RunLengths& mask, Visit visit) {
  int64_t at = 0;
  bool one = false;
  for (const uint32_t count : mask.counts) {
    if (one && count > 0) visit(at, at + count);
    at += count;
    one = !one;
  }
}

/// Collects runs of 1 in rising order, of which neighbors may touch.
class RunWriter {
 public:
  RunWriter(int64_t height, int64_t width) : mask_{.height = height, .width = width, .counts = {}} {}
  void add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (begin > end_ || mask_.counts.empty()) {
      mask_.counts.push_back(static_cast<uint32_t>(begin - end_));
      mask_.counts.push_back(0);
    }
    mask_.counts.back() += static_cast<uint32_t>(end - std::max(begin, end_));
    end_ = end;
  }
  RunLengths take() {
    const int64_t all = mask_.height * mask_.width;
    if (end_ < all || mask_.counts.empty()) mask_.counts.push_back(static_cast<uint32_t>(all - end_));
    return std::move(mask_);
  }

 private:
  RunLengths mask_;
  int64_t end_ = 0;
};

constexpr double kFiner = 5;  // pycocotools walks along the sides of polygons in steps of a fifth of a pixel

struct Point {
  int64_t x, y;
};

/// Calls visit(Point) for each step along a side, both ends included.
template <class Visit>
void walk_side(Point from, Point to, Visit visit) {
  const int64_t across = std::abs(to.x - from.x), down = std::abs(to.y - from.y);
  const bool flat = across >= down;
  const bool backwards = flat ? from.x > to.x : from.y > to.y;
  if (backwards) std::swap(from, to);
  const int64_t steps = flat ? across : down;
  const double rise = flat ? static_cast<double>(to.y - from.y) : static_cast<double>(to.x - from.x);
  const double slope = steps == 0 ? 0 : rise / static_cast<double>(steps);
  for (int64_t step = 0; step <= steps; ++step) {
    const int64_t t = backwards ? steps - step : step;
    const double other = static_cast<double>(flat ? from.y : from.x) + slope * static_cast<double>(t) + 0.5;
    if (flat) {
      visit(Point{from.x + t, static_cast<int64_t>(other)});
    } else {
      visit(Point{static_cast<int64_t>(other), from.y + t});
    }
  }
}

}  // namespace

RunLengths RunLengths::of(const uint8_t* pixels, int64_t height, int64_t width) {
  RunLengths mask{.height = height, .width = width, .counts = {}};
  bool last = false;
  uint32_t count = 0;
  for (int64_t x = 0; x < width; ++x) {
    for (int64_t y = 0; y < height; ++y) {
      const bool one = pixels[y * width + x] != 0;
      if (one != last) {
        mask.counts.push_back(count);
        count = 0;
        last = one;
      }
      ++count;
    }
  }
  mask.counts.push_back(count);
  return mask;
}

RunLengths RunLengths::of_polygon(std::span<const double> points, int64_t height, int64_t width) {
  const size_t corners = points.size() / 2;
  const auto corner = [&](size_t i) {
    const auto finer = [](double v) { return static_cast<int64_t>(kFiner * v + 0.5); };
    return Point{finer(points[2 * (i % corners)]), finer(points[2 * (i % corners) + 1])};
  };
  // Where the outline crosses the center of a column, the mask changes.
  std::vector<int64_t> changes;
  bool first = true;
  Point before{0, 0};
  for (size_t i = 0; i < corners; ++i) {
    walk_side(corner(i), corner(i + 1), [&](Point at) {
      if (!first && at.x != before.x) {
        const auto coarse = [](int64_t v) { return (static_cast<double>(v) + 0.5) / kFiner - 0.5; };
        const double x = coarse(at.x < before.x ? at.x : at.x - 1);
        if (std::floor(x) == x && x >= 0 && x <= static_cast<double>(width - 1)) {
          const double y = std::ceil(std::clamp(coarse(std::min(at.y, before.y)), 0.0, static_cast<double>(height)));
          changes.push_back(static_cast<int64_t>(x) * height + static_cast<int64_t>(y));
        }
      }
      first = false;
      before = at;
    });
  }
  std::sort(changes.begin(), changes.end());
  if (changes.size() % 2 == 1) changes.push_back(height * width);
  RunWriter writer(height, width);
  for (size_t i = 0; i < changes.size(); i += 2) writer.add(changes[i], changes[i + 1]);
  return writer.take();
}

RunLengths RunLengths::of_text(std::string_view text, int64_t height, int64_t width) {
  RunLengths mask{.height = height, .width = width, .counts = {}};
  const int64_t all = height * width;
  int64_t sum = 0;
  for (size_t at = 0; at < text.size();) {
    int64_t count = 0;
    for (int shift = 0;; shift += 5) {
      GALLEY_CHECK_INPUT(at < text.size() && shift <= 35, "the run lengths end inside a number; the text is cut off or damaged");
      const int code = text[at] - 48;
      GALLEY_CHECK_INPUT(code >= 0 && code < 64, "the character ", at + 1, " of the run lengths is not in COCO's alphabet, '0' to 'o'");
      ++at;
      count |= static_cast<int64_t>(code & 31) << shift;
      if ((code & 32) != 0) continue;
      if ((code & 16) != 0) count -= int64_t{1} << (shift + 5);
      break;
    }
    const size_t written = mask.counts.size();
    if (written > 2) count += mask.counts[written - 2];
    GALLEY_CHECK_INPUT(count >= 0 && count <= all - sum, "the run lengths are of more pixels than ", width, " x ", height, ", or negative");
    mask.counts.push_back(static_cast<uint32_t>(count));
    sum += count;
  }
  GALLEY_CHECK_INPUT(sum == all, "the run lengths are of ", sum, " pixels; ", width, " x ", height, " are ", all);
  return mask;
}

void RunLengths::draw(uint8_t* pixels) const {
  std::memset(pixels, 0, static_cast<size_t>(height * width));
  visit_runs(*this, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pixels[i % height * width + i / height] = 1;
  });
}

std::string RunLengths::text() const {
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    int64_t value = counts[i];
    if (i > 2) value -= counts[i - 2];
    for (bool more = true; more;) {
      const int64_t low = value & 31;
      value >>= 5;
      more = (low & 16) != 0 ? value != -1 : value != 0;
      text += static_cast<char>(48 + low + (more ? 32 : 0));
    }
  }
  return text;
}

int64_t RunLengths::area() const {
  int64_t sum = 0;
  visit_runs(*this, [&](int64_t begin, int64_t end) { sum += end - begin; });
  return sum;
}

std::array<double, 4> RunLengths::box() const {
  int64_t left = width, right = 0, top = height, bottom = 0;
  visit_runs(*this, [&](int64_t begin, int64_t end) {
    const int64_t first = begin / height, last = (end - 1) / height;
    left = std::min(left, first);
    right = std::max(right, last + 1);
    top = std::min(top, first == last ? begin % height : 0);
    bottom = std::max(bottom, first == last ? (end - 1) % height + 1 : height);
  });
  if (right == 0) return {};
  return {static_cast<double>(left), static_cast<double>(top), static_cast<double>(right - left), static_cast<double>(bottom - top)};
}

RunLengths united(const std::vector<RunLengths>& masks) {
  GALLEY_ASSERT(!masks.empty());
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const RunLengths& mask : masks) visit_runs(mask, [&](int64_t begin, int64_t end) { runs.emplace_back(begin, end); });
  std::sort(runs.begin(), runs.end());
  RunWriter writer(masks[0].height, masks[0].width);
  int64_t done = 0;
  for (const auto& [begin, end] : runs) {
    writer.add(std::max(begin, done), end);
    done = std::max(done, end);
  }
  return writer.take();
}

int64_t common_area(const RunLengths& a, const RunLengths& b) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  visit_runs(b, [&](int64_t begin, int64_t end) { runs.emplace_back(begin, end); });
  int64_t sum = 0;
  auto first = runs.begin();
  visit_runs(a, [&](int64_t begin, int64_t end) {
    while (first != runs.end() && first->second <= begin) ++first;
    for (auto other = first; other != runs.end() && other->first < end; ++other)
      sum += std::min(end, other->second) - std::max(begin, other->first);
  });
  return sum;
}

}  // namespace galley
