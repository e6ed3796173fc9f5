// What detectors of instances compute besides layers, in f32: targets of masks and key points, and key points from heat maps. Threads take
// regions in turn.
//
// locate_keypoints does not resize heat maps. It bounds the resized pixels between four cells of a map by the largest and the smallest of
// the 16 cells that they depend on, and computes them only where they may exceed the best pixel so far; it begins at the largest cell.

#include "libcore/backends/cpu/instances.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/base/parallel.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/roi_align.h"

namespace galley {
namespace {

class MaskTargets : public PreparedKernel {
 public:
  explicit MaskTargets(const KernelQuery& q)
      : objects_(q.in(0).shape[0]),
        height_(q.in(0).shape[1]),
        width_(q.in(0).shape[2]),
        regions_(q.in(2).elements()),
        size_(q.attrs<MaskTargetsAttrs>().size) {}

  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(regions_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t object = args.in<int64_t>(2)[r];
        float* out = args.out<float>(0) + r * size_ * size_;
        if (object < 0 || object >= objects_) {
          std::fill_n(out, size_ * size_, 0.0f);
        } else {
          crop(args.in<uint8_t>(0) + object * height_ * width_, args.in<float>(1) + r * 4, out);
        }
      }
    });
  }

 private:
  void crop(const uint8_t* mask, const float* box, float* out) const {
    const auto at = [&](int i) { return static_cast<double>(box[i]); };
    const RoiAxis across = roi_axis(at(0), at(2), size_, 1, 0, false), down = roi_axis(at(1), at(3), size_, 1, 0, false);
    const double share = 1 / static_cast<double>(std::max<int64_t>(down.samples * across.samples, 1));
    for (int64_t i = 0; i < size_; ++i) {
      for (int64_t j = 0; j < size_; ++j) {
        double total = 0;
        for (int64_t s = 0; s < down.samples; ++s) {
          const RoiSample row = roi_sample(down.at(i, s), height_);
          if (!row.inside) continue;
          const uint8_t *upper = mask + row.low * width_, *lower = mask + row.high * width_;
          for (int64_t t = 0; t < across.samples; ++t) {
            const RoiSample column = roi_sample(across.at(j, t), width_);
            if (!column.inside) continue;
            const auto between = [&](const uint8_t* line) {
              const double low = line[column.low], high = line[column.high];
              return low + (high - low) * column.fraction;
            };
            const double first = between(upper);
            total += first + (between(lower) - first) * row.fraction;
          }
        }
        *out++ = static_cast<float>(total * share);
      }
    }
  }

  int64_t objects_, height_, width_, regions_, size_;
};

class KeypointCells : public PreparedKernel {
 public:
  explicit KeypointCells(const KernelQuery& q)
      : objects_(q.in(0).shape[0]), points_(q.in(0).shape[1]), regions_(q.in(2).elements()), size_(q.attrs<KeypointCellsAttrs>().size) {}

  void run(Stream&, const KernelArgs& args) const override {
    for (int64_t r = 0; r < regions_; ++r) {
      const int64_t object = args.in<int64_t>(2)[r];
      const float* box = args.in<float>(1) + r * 4;
      int64_t* out = args.out<int64_t>(0) + r * points_;
      std::fill_n(out, points_, kNoCell);
      if (object < 0 || object >= objects_) continue;
      const float* point = args.in<float>(0) + object * points_ * 3;
      for (int64_t k = 0; k < points_; ++k, point += 3) {
        const int64_t column = cell(point[0], box[0], box[2]), row = cell(point[1], box[1], box[3]);
        if (point[2] > 0 && row >= 0 && column >= 0) out[k] = row * size_ + column;
      }
    }
  }

 private:
  /// The cell along one axis, or -1 outside.
  int64_t cell(float at, float low, float high) const {
    if (at == high) return size_ - 1;
    const auto size = static_cast<float>(size_);
    const float place = std::floor((at - low) * (size / (high - low)));
    return place >= 0 && place < size ? static_cast<int64_t>(place) : -1;
  }

  int64_t objects_, points_, regions_, size_;
};

/// The pixels of a resized line that lie between two of its cells.
struct Span {
  int64_t cell = 0;  // the lower of the two; -1 before the first
  int64_t begin = 0, end = 0;
};

/// An axis of a heat map that is resized from `in` cells to `out` pixels.
struct ResizedAxis {
  int64_t in, out;
  double source(int64_t pixel) const {
    return (static_cast<double>(pixel) + 0.5) * (static_cast<double>(in) / static_cast<double>(out)) - 0.5;
  }
  int64_t cell(int64_t pixel) const { return static_cast<int64_t>(std::floor(source(pixel))); }
  int64_t clamped(int64_t cell) const { return std::clamp<int64_t>(cell, 0, in - 1); }
  /// Calls visit(Span) for all pixels in order.
  template <class Visit>
  void walk(Visit visit) const {
    for (int64_t begin = 0; begin < out;) {
      Span span{.cell = cell(begin), .begin = begin, .end = begin + 1};
      while (span.end < out && cell(span.end) == span.cell) ++span.end;
      begin = span.end;
      visit(span);
    }
  }
};

/// The largest pixel of a resized heat map.
class LargestPixel {
 public:
  LargestPixel(const float* map, const ResizedAxis& down, const ResizedAxis& across) : map_(map), down_(down), across_(across) {
    const int64_t largest = std::max_element(map, map + down.in * across.in) - map;
    const auto near = [](const Span& span, int64_t cell) { return span.cell == cell || span.cell == cell - 1; };
    for (const bool first : {true, false}) {
      down.walk([&](const Span& rows) {
        if (first && !near(rows, largest / across.in)) return;
        across.walk([&](const Span& columns) {
          if (!first || near(columns, largest % across.in)) search(rows, columns);
        });
      });
    }
  }
  int64_t pixel = -1;
  double value = 0;

 private:
  void search(const Span& rows, const Span& columns) {
    std::array<double, 16> cells;
    for (int64_t i = 0; i < 4; ++i) {
      const float* line = map_ + down_.clamped(rows.cell - 1 + i) * across_.in;
      for (int64_t j = 0; j < 4; ++j)
        cells[static_cast<size_t>(4 * i + j)] = static_cast<double>(line[across_.clamped(columns.cell - 1 + j)]);
    }
    const auto [low, high] = std::minmax_element(cells.begin(), cells.end());
    // Positive weights add up to at most (19/16)^2 + (3/16)^2, and all weights to 1.
    constexpr double kPositive = 1.4453125, kRounding = 1e-9;
    if (pixel >= 0 && *high + (kPositive - 1) * (*high - *low) * (1 + kRounding) < value) return;
    for (int64_t y = rows.begin; y < rows.end; ++y) {
      const double fraction = down_.source(y) - static_cast<double>(rows.cell);
      const CubicWeights vertical(fraction);
      std::array<double, 4> line;
      for (size_t j = 0; j < 4; ++j)
        line[j] =
            vertical.at[0] * cells[j] + vertical.at[1] * cells[4 + j] + vertical.at[2] * cells[8 + j] + vertical.at[3] * cells[12 + j];
      for (int64_t x = columns.begin; x < columns.end; ++x) {
        const CubicWeights horizontal(across_.source(x) - static_cast<double>(columns.cell));
        const double at = horizontal.at[0] * line[0] + horizontal.at[1] * line[1] + horizontal.at[2] * line[2] + horizontal.at[3] * line[3];
        const int64_t place = y * across_.out + x;
        if (pixel >= 0 && (at < value || (at == value && place > pixel))) continue;
        value = at;
        pixel = place;
      }
    }
  }

  const float* map_;
  ResizedAxis down_, across_;
};

class LocateKeypoints : public PreparedKernel {
 public:
  explicit LocateKeypoints(const KernelQuery& q) : heat_(q.in(0).shape) {}

  void run(Stream&, const KernelArgs& args) const override {
    const int64_t rows = heat_[1], points = heat_[2], h = heat_[3], w = heat_[4];
    parallel_for(heat_[0] * rows * points, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / points;
        float* out = args.out<float>(0) + i * 3;
        std::fill_n(out, 3, 0.0f);
        if (r % rows >= args.in<int64_t>(2)[r / rows]) continue;
        const float* box = args.in<float>(1) + r * 4;
        const float width = std::max(box[2] - box[0], 1.0f), height = std::max(box[3] - box[1], 1.0f);
        if (!std::isfinite(width) || !std::isfinite(height)) continue;
        const float columns = std::ceil(width), lines = std::ceil(height);
        const LargestPixel best(args.in<float>(0) + i * h * w, {h, static_cast<int64_t>(lines)}, {w, static_cast<int64_t>(columns)});
        const auto across = static_cast<int64_t>(columns);
        out[0] = (static_cast<float>(best.pixel % across) + 0.5f) * (width / columns) + box[0];
        out[1] = (static_cast<float>(best.pixel / across) + 0.5f) * (height / lines) + box[1];
        out[2] = static_cast<float>(best.value);
      }
    });
  }

 private:
  Shape heat_;
};

Support supports(const KernelQuery& q) {
  if (q.in(1).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(1).dtype));
  for (size_t i = 0; i < q.node.inputs.size(); ++i) {
    const TensorType& type = q.in(static_cast<int>(i));
    if (!type.format.is_contiguous()) return Support::no(cat("format ", type.format));
  }
  if (!q.out(0).format.is_contiguous()) return Support::no(cat("format ", q.out(0).format));
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 3> kKernels{{{"mask_targets", "samples", supports, prepare<MaskTargets>},
                                      {"keypoint_cells", "rows", supports, prepare<KeypointCells>},
                                      {"locate_keypoints", "bounds", supports, prepare<LocateKeypoints>}}};

}  // namespace

std::span<const Kernel> cpu_instances() { return kKernels; }

}  // namespace galley
