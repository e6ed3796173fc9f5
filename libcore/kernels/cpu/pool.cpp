// Pooling on channels_last arrays: channels are the vector.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/kernels/cpu/vector_math.h"
#include "libcore/ops/pool.h"

namespace galley {
namespace {

struct Window {
  std::array<int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
};

template <class Attrs>
Window window_of(const Attrs& a) {
  Window w;
  w.kernel = pair(a.kernel_size);
  w.stride = pair(a.stride.empty() ? a.kernel_size : a.stride);
  w.padding = pair(a.padding);
  return w;
}

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}

/// Keeps the larger value and its tap; the first of equal ones stays, NaN wins.
GALLEY_CLONES void take_max(const float* x, float* best, uint8_t* index, int64_t channels, uint8_t tap) {
  for (int64_t c = 0; c < channels; ++c) {
    const bool larger = (x[c] > best[c]) | ((x[c] != x[c]) & (best[c] == best[c]));
    best[c] = larger ? x[c] : best[c];
    index[c] = larger ? tap : index[c];
  }
}

GALLEY_CLONES void add_where(const float* grad, const uint8_t* index, float* dx, int64_t channels, uint8_t tap) {
  for (int64_t c = 0; c < channels; ++c) dx[c] += index[c] == tap ? grad[c] : 0;
}

GALLEY_CLONES void add_scaled(const float* x, float* y, int64_t channels, float scale) {
  for (int64_t c = 0; c < channels; ++c) y[c] += x[c] * scale;
}

/// body(pixel of the image, tap) for the taps of window (h, w) that lie inside the image [.,.,H,W], in order.
template <class Body>
void for_taps(const Window& window, const Shape& x, int64_t h, int64_t w, Body body) {
  for (int64_t kh = 0; kh < window.kernel[0]; ++kh) {
    const int64_t row = h * window.stride[0] - window.padding[0] + kh * window.dilation[0];
    if (row < 0 || row >= x[2]) continue;
    for (int64_t kw = 0; kw < window.kernel[1]; ++kw) {
      const int64_t column = w * window.stride[1] - window.padding[1] + kw * window.dilation[1];
      if (column >= 0 && column < x[3]) body(row * x[3] + column, static_cast<uint8_t>(kh * window.kernel[1] + kw));
    }
  }
}

class MaxPool2d : public PreparedKernel {
 public:
  explicit MaxPool2d(const KernelQuery& q) : window_(window_of(q.attrs<MaxPool2dAttrs>())), x_(q.in(0).shape), y_(q.out(0).shape) {
    window_.dilation = pair(q.attrs<MaxPool2dAttrs>().dilation);
  }
  void run(const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    parallel_for(y_[0] * y_[2], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t n = line / y_[2], h = line % y_[2];
        for (int64_t w = 0; w < y_[3]; ++w) {
          float* best = args.out<float>(0) + (line * y_[3] + w) * channels;
          auto* index = args.out<uint8_t>(1) + (line * y_[3] + w) * channels;
          bool first = true;
          for_taps(window_, x_, h, w, [&](int64_t pixel, uint8_t tap) {
            const float* in = args.in<float>(0) + (n * x_[2] * x_[3] + pixel) * channels;
            if (first) {
              std::memcpy(best, in, static_cast<size_t>(channels) * 4);
              std::memset(index, tap, static_cast<size_t>(channels));
              first = false;
            } else {
              take_max(in, best, index, channels, tap);
            }
          });
        }
      }
    });
  }

 private:
  Window window_;
  Shape x_, y_;
};

class MaxPool2dBackward : public PreparedKernel {
 public:
  explicit MaxPool2dBackward(const KernelQuery& q) : window_(window_of(q.attrs<MaxPool2dBackwardAttrs>())), x_(q.out(0).shape), y_(q.in(0).shape) {
    window_.dilation = pair(q.attrs<MaxPool2dBackwardAttrs>().dilation);
  }
  void run(const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    // One image a task: windows of one image may overlap, those of two never do.
    parallel_for(x_[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        float* image = args.out<float>(0) + n * x_[2] * x_[3] * channels;
        std::memset(image, 0, static_cast<size_t>(x_[2] * x_[3] * channels) * 4);
        for (int64_t h = 0; h < y_[2]; ++h) {
          for (int64_t w = 0; w < y_[3]; ++w) {
            const int64_t at = ((n * y_[2] + h) * y_[3] + w) * channels;
            for_taps(window_, x_, h, w, [&](int64_t pixel, uint8_t tap) {
              add_where(args.in<float>(0) + at, args.in<uint8_t>(1) + at, image + pixel * channels, channels, tap);
            });
          }
        }
      }
    });
  }

 private:
  Window window_;
  Shape x_, y_;
};

/// Average pooling, windowed or adaptive, forward or backward: cells of each window and their weight.
class Average : public PreparedKernel {
 public:
  struct Cell {
    PoolRange rows, columns;
    float scale = 1;
  };
  Average(const Shape& x, const Shape& y, bool backward) : x_(x), y_(y), backward_(backward) {}
  std::vector<Cell> cells;  // H' x W'

  void run(const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    if (!backward_) {
      parallel_for(y_[0] * y_[2], 1, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          for (int64_t w = 0; w < y_[3]; ++w) {
            const Cell& cell = cells[static_cast<size_t>(line % y_[2] * y_[3] + w)];
            float* out = args.out<float>(0) + (line * y_[3] + w) * channels;
            std::memset(out, 0, static_cast<size_t>(channels) * 4);
            for_each_pixel(line / y_[2], cell, [&](int64_t at) { add_scaled(args.in<float>(0) + at, out, channels, cell.scale); });
          }
        }
      });
      return;
    }
    parallel_for(x_[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        std::memset(args.out<float>(0) + n * x_[2] * x_[3] * channels, 0, static_cast<size_t>(x_[2] * x_[3] * channels) * 4);
        for (int64_t i = 0; i < y_[2] * y_[3]; ++i) {
          const Cell& cell = cells[static_cast<size_t>(i)];
          const float* grad = args.in<float>(0) + (n * y_[2] * y_[3] + i) * channels;
          for_each_pixel(n, cell, [&](int64_t at) { add_scaled(grad, args.out<float>(0) + at, channels, cell.scale); });
        }
      }
    });
  }

 private:
  template <class Visit>
  void for_each_pixel(int64_t n, const Cell& cell, Visit visit) const {
    for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
      for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) visit(((n * x_[2] + row) * x_[3] + column) * x_[1]);
    }
  }
  Shape x_, y_;
  bool backward_;
};

template <class Attrs>
std::unique_ptr<PreparedKernel> prepare_windowed(const Attrs& a, const Shape& x, const Shape& y, bool backward) {
  const Window window = window_of(a);
  auto kernel = std::make_unique<Average>(x, y, backward);
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Average::Cell cell{pool_range(h, x[2], window.kernel[0], window.stride[0], window.padding[0]), pool_range(w, x[3], window.kernel[1], window.stride[1], window.padding[1]), 1};
      const int64_t inside = (cell.rows.end - cell.rows.begin) * (cell.columns.end - cell.columns.begin);
      cell.scale = 1.0f / static_cast<float>(a.count_include_pad ? cell.rows.size * cell.columns.size : inside);
      kernel->cells.push_back(cell);
    }
  }
  return kernel;
}

std::unique_ptr<PreparedKernel> prepare_adaptive(const Shape& x, const Shape& y, bool backward) {
  auto kernel = std::make_unique<Average>(x, y, backward);
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Average::Cell cell{adaptive_range(h, x[2], y[2]), adaptive_range(w, x[3], y[3]), 1};
      cell.scale = 1.0f / static_cast<float>(cell.rows.size * cell.columns.size);
      kernel->cells.push_back(cell);
    }
  }
  return kernel;
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}
std::unique_ptr<PreparedKernel> prepare_avg(const KernelQuery& q) { return prepare_windowed(q.attrs<AvgPool2dAttrs>(), q.in(0).shape, q.out(0).shape, false); }
std::unique_ptr<PreparedKernel> prepare_avg_backward(const KernelQuery& q) { return prepare_windowed(q.attrs<AvgPool2dBackwardAttrs>(), q.out(0).shape, q.in(0).shape, true); }
std::unique_ptr<PreparedKernel> prepare_adaptive_avg(const KernelQuery& q) { return prepare_adaptive(q.in(0).shape, q.out(0).shape, false); }
std::unique_ptr<PreparedKernel> prepare_adaptive_avg_backward(const KernelQuery& q) { return prepare_adaptive(q.out(0).shape, q.in(0).shape, true); }

const std::array<Kernel, 6> kKernels{{{"max_pool2d", "cpu", supports, prepare<MaxPool2d>},
                                      {"max_pool2d_backward", "cpu", supports, prepare<MaxPool2dBackward>},
                                      {"avg_pool2d", "cpu", supports, prepare_avg},
                                      {"avg_pool2d_backward", "cpu", supports, prepare_avg_backward},
                                      {"adaptive_avg_pool2d", "cpu", supports, prepare_adaptive_avg},
                                      {"adaptive_avg_pool2d_backward", "cpu", supports, prepare_adaptive_avg_backward}}};

}  // namespace

std::span<const Kernel> cpu_pool() { return kKernels; }

}  // namespace galley
