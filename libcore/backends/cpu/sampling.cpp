// grid_sample and its gradients in f32, contiguous. The pixels and weights of a point are computed once, in double, and applied to all
// channels. The gradient of the image gives each task some channels of a sample, so that no two tasks add to one pixel and every sum keeps
// its order. Bound by the gathers.

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/grid_sample.h"

namespace galley {
namespace {

constexpr int64_t kChannels = 16;  // of a task of the image's gradient

/// The pixels that a point reads, their weights, and the slopes of the weights in the point's x and y.
struct Corners {
  int64_t count = 0;
  std::array<int64_t, 4> pixel{};
  std::array<float, 4> weight{}, slope_x{}, slope_y{};
};

Corners corners_of(const float* point, int64_t rows, int64_t columns, const GridSampleAttrs& attrs) {
  const GridPoint across = grid_point(point[0], columns, attrs.padding_mode, attrs.align_corners);
  const GridPoint down = grid_point(point[1], rows, attrs.padding_mode, attrs.align_corners);
  Corners corners;
  for (const GridTap& row : grid_taps(down.position, rows, attrs.mode)) {
    for (const GridTap& column : grid_taps(across.position, columns, attrs.mode)) {
      if (!row.inside || !column.inside) continue;
      const auto i = static_cast<size_t>(corners.count++);
      corners.pixel[i] = row.pixel * columns + column.pixel;
      corners.weight[i] = static_cast<float>(row.weight * column.weight);
      corners.slope_x[i] = static_cast<float>(across.slope * row.weight * column.slope);
      corners.slope_y[i] = static_cast<float>(down.slope * row.slope * column.weight);
    }
  }
  return corners;
}

class GridSample : public PreparedKernel {
 public:
  explicit GridSample(const KernelQuery& q) : attrs_(q.attrs<GridSampleAttrs>()), x_(q.in(0).shape), y_(q.out(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t points = y_[2] * y_[3], pixels = x_[2] * x_[3];
    parallel_for(y_[0] * points, std::max<int64_t>(1, 4096 / x_[1]), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const Corners corners = corners_of(args.in<float>(1) + 2 * at, x_[2], x_[3], attrs_);
        const int64_t n = at / points;
        for (int64_t c = n * x_[1]; c < (n + 1) * x_[1]; ++c) {
          const float* plane = args.in<float>(0) + c * pixels;
          float sum = 0;
          for (size_t i = 0; i < static_cast<size_t>(corners.count); ++i) sum += corners.weight[i] * plane[corners.pixel[i]];
          args.out<float>(0)[c * points + at % points] = sum;
        }
      }
    });
  }

 private:
  GridSampleAttrs attrs_;
  Shape x_, y_;
};

class GridSampleBackward : public PreparedKernel {
 public:
  explicit GridSampleBackward(const KernelQuery& q)
      : attrs_(q.attrs<GridSampleBackwardAttrs>().forward()), grad_(q.in(0).shape), dx_(q.out(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = dx_[1], points = grad_[2] * grad_[3], pixels = dx_[2] * dx_[3];
    const int64_t blocks = (channels + kChannels - 1) / kChannels;
    parallel_for(dx_[0] * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task / blocks, first = n * channels + task % blocks * kChannels;
        const int64_t last = std::min(first + kChannels, (n + 1) * channels);
        float* dx = args.out<float>(0);
        std::fill(dx + first * pixels, dx + last * pixels, 0.0f);
        for (int64_t p = 0; p < points; ++p) {
          const Corners corners = corners_of(args.in<float>(1) + 2 * (n * points + p), dx_[2], dx_[3], attrs_);
          for (int64_t c = first; c < last; ++c) {
            const float grad = args.in<float>(0)[c * points + p];
            for (size_t i = 0; i < static_cast<size_t>(corners.count); ++i) dx[c * pixels + corners.pixel[i]] += corners.weight[i] * grad;
          }
        }
      }
    });
  }

 private:
  GridSampleAttrs attrs_;
  Shape grad_, dx_;
};

class GridSampleBackwardGrid : public PreparedKernel {
 public:
  explicit GridSampleBackwardGrid(const KernelQuery& q) : attrs_(q.attrs<GridSampleAttrs>()), grad_(q.in(0).shape), x_(q.in(1).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t points = grad_[2] * grad_[3], pixels = x_[2] * x_[3];
    parallel_for(grad_[0] * points, std::max<int64_t>(1, 4096 / x_[1]), [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const Corners corners = corners_of(args.in<float>(2) + 2 * at, x_[2], x_[3], attrs_);
        const int64_t n = at / points;
        float x = 0, y = 0;
        for (int64_t c = n * x_[1]; c < (n + 1) * x_[1]; ++c) {
          const float grad = args.in<float>(0)[c * points + at % points];
          const float* plane = args.in<float>(1) + c * pixels;
          for (size_t i = 0; i < static_cast<size_t>(corners.count); ++i) {
            x += corners.slope_x[i] * plane[corners.pixel[i]] * grad;
            y += corners.slope_y[i] * plane[corners.pixel[i]] * grad;
          }
        }
        args.out<float>(0)[2 * at] = x;
        args.out<float>(0)[2 * at + 1] = y;
      }
    });
  }

 private:
  GridSampleAttrs attrs_;
  Shape grad_, x_;
};

Support supports(const KernelQuery& q) {
  for (int i = 0; i < static_cast<int>(q.node.inputs.size()); ++i) {
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
    if (!q.in(i).format.is_contiguous()) return Support::no(cat("format ", q.in(i).format));
  }
  if (!q.out(0).format.is_contiguous()) return Support::no(cat("format ", q.out(0).format));
  if (q.out(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 3> kKernels{{{"grid_sample", "points", supports, prepare<GridSample>},
                                      {"grid_sample_backward", "channel_parts", supports, prepare<GridSampleBackward>},
                                      {"grid_sample_backward_grid", "points", supports, prepare<GridSampleBackwardGrid>}}};

}  // namespace

std::span<const Kernel> cpu_sampling() { return kKernels; }

}  // namespace galley
