// Pooling of contiguous arrays, a plane at a time, O(window) for each result, bound by the loads of each window; and adaptive maxima in
// both formats (rare: element by element). channels_last: pool.cpp.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/pool.h"

namespace galley {
namespace {

struct Planes {
  Planes(const Shape& input, const Shape& output) : x(input), y(output), count(x[0] * x[1]) {}
  Shape x, y;
  int64_t count;
  int64_t x_size() const { return x[2] * x[3]; }
  int64_t y_size() const { return y[2] * y[3]; }
  /// body(plane) on the compute threads.
  template <class Body>
  void for_each(Body body) const {
    parallel_for(count, std::max<int64_t>(1, 4096 / (x_size() + y_size())), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) body(plane);
    });
  }
};

/// Larger, NaN counting as the largest.
bool exceeds(float value, float best) { return (value > best) | ((value != value) & (best == best)); }

template <class Attrs>
struct Window {
  explicit Window(const Attrs& a)
      : kernel(pair(a.kernel_size)),
        stride(pair(a.stride.empty() ? a.kernel_size : a.stride)),
        padding(pair(a.padding)),
        dilation(pair(a.dilation)) {}
  std::array<int64_t, 2> kernel, stride, padding, dilation;
};

class MaxPool2d : public PreparedKernel {
 public:
  explicit MaxPool2d(const KernelQuery& q) : window_(q.attrs<MaxPool2dAttrs>()), planes_(q.in(0).shape, q.out(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Shape &x = planes_.x, &y = planes_.y;
    const auto& w = window_;
    planes_.for_each([&](int64_t plane) {
      const float* in = args.in<float>(0) + plane * planes_.x_size();
      float* best = args.out<float>(0) + plane * planes_.y_size();
      auto* index = args.out<uint8_t>(1) + plane * planes_.y_size();
      for (int64_t h = 0; h < y[2]; ++h) {
        for (int64_t column = 0; column < y[3]; ++column, ++best, ++index) {
          bool any = false;
          float value = 0;
          uint8_t tap = 0;
          for (int64_t kh = 0; kh < w.kernel[0]; ++kh) {
            const int64_t row = h * w.stride[0] - w.padding[0] + kh * w.dilation[0];
            if (row < 0 || row >= x[2]) continue;
            for (int64_t kw = 0; kw < w.kernel[1]; ++kw) {
              const int64_t at = column * w.stride[1] - w.padding[1] + kw * w.dilation[1];
              if (at < 0 || at >= x[3]) continue;
              const float candidate = in[row * x[3] + at];
              const bool larger = !any | exceeds(candidate, value);  // selections: branches would often be mispredicted
              value = larger ? candidate : value;
              tap = larger ? static_cast<uint8_t>(kh * w.kernel[1] + kw) : tap;
              any = true;
            }
          }
          *best = value;
          *index = tap;
        }
      }
    });
  }

 private:
  Window<MaxPool2dAttrs> window_;
  Planes planes_;
};

class MaxPool2dBackward : public PreparedKernel {
 public:
  explicit MaxPool2dBackward(const KernelQuery& q) : window_(q.attrs<MaxPool2dBackwardAttrs>()), planes_(q.out(0).shape, q.in(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Shape &x = planes_.x, &y = planes_.y;
    const auto& w = window_;
    planes_.for_each([&](int64_t plane) {
      float* dx = args.out<float>(0) + plane * planes_.x_size();
      std::memset(dx, 0, static_cast<size_t>(planes_.x_size()) * 4);
      const float* grad = args.in<float>(0) + plane * planes_.y_size();
      const auto* index = args.in<uint8_t>(1) + plane * planes_.y_size();
      for (int64_t h = 0; h < y[2]; ++h) {
        for (int64_t column = 0; column < y[3]; ++column, ++grad, ++index) {
          const int64_t row = h * w.stride[0] - w.padding[0] + *index / w.kernel[1] * w.dilation[0];
          const int64_t at = column * w.stride[1] - w.padding[1] + *index % w.kernel[1] * w.dilation[1];
          dx[row * x[3] + at] += *grad;
        }
      }
    });
  }

 private:
  Window<MaxPool2dBackwardAttrs> window_;
  Planes planes_;
};

/// Average pooling, windowed or adaptive, forward or backward: cells of each window and their weight.
class Average : public PreparedKernel {
 public:
  struct Cell {
    PoolRange rows, columns;
    float scale = 1;
  };
  Average(const Shape& x, const Shape& y, bool backward) : planes_(x, y), backward_(backward) {}
  std::vector<Cell> cells;  // H' x W'

  void run(Stream&, const KernelArgs& args) const override {
    const int64_t width = planes_.x[3];
    planes_.for_each([&](int64_t plane) {
      if (!backward_) {
        const float* x = args.in<float>(0) + plane * planes_.x_size();
        float* y = args.out<float>(0) + plane * planes_.y_size();
        for (const Cell& cell : cells) {
          float sum = 0;
          for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
            float line = 0;
            for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) line += x[row * width + column];
            sum += line;
          }
          *y++ = sum * cell.scale;
        }
        return;
      }
      float* dx = args.out<float>(0) + plane * planes_.x_size();
      std::memset(dx, 0, static_cast<size_t>(planes_.x_size()) * 4);
      const float* grad = args.in<float>(0) + plane * planes_.y_size();
      for (const Cell& cell : cells) {
        const float share = *grad++ * cell.scale;
        for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
          for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) dx[row * width + column] += share;
        }
      }
    });
  }

 private:
  Planes planes_;
  bool backward_;
};

template <class Attrs>
std::unique_ptr<PreparedKernel> windowed(const Attrs& a, const Shape& x, const Shape& y, bool backward) {
  const auto kernel = pair(a.kernel_size), stride = pair(a.stride.empty() ? a.kernel_size : a.stride), padding = pair(a.padding);
  auto average = std::make_unique<Average>(x, y, backward);
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Average::Cell cell{pool_range(h, x[2], kernel[0], stride[0], padding[0]), pool_range(w, x[3], kernel[1], stride[1], padding[1]), 1};
      const int64_t inside = (cell.rows.end - cell.rows.begin) * (cell.columns.end - cell.columns.begin);
      cell.scale = 1.0f / static_cast<float>(a.count_include_pad ? cell.rows.size * cell.columns.size : inside);
      average->cells.push_back(cell);
    }
  }
  return average;
}

std::unique_ptr<PreparedKernel> adaptive(const Shape& x, const Shape& y, bool backward) {
  auto average = std::make_unique<Average>(x, y, backward);
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Average::Cell cell{adaptive_range(h, x[2], y[2]), adaptive_range(w, x[3], y[3]), 1};
      cell.scale = 1.0f / static_cast<float>(cell.rows.size * cell.columns.size);
      average->cells.push_back(cell);
    }
  }
  return average;
}

/// Where plane `plane`'s pixel 0 is and how far apart its pixels are.
struct PixelWalk {
  PixelWalk(const TensorType& type, int64_t plane) {
    const int64_t channels = type.shape[1], pixels = type.shape[2] * type.shape[3];
    first = type.format.is_channels_last() ? plane / channels * channels * pixels + plane % channels : plane * pixels;
    step = type.format.is_channels_last() ? channels : 1;
  }
  int64_t first, step;
};

template <class T>
class AdaptiveMax : public PreparedKernel {
 public:
  explicit AdaptiveMax(const KernelQuery& q) : x_(q.in(0)), y_(q.out(0)), planes_(x_.shape, y_.shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    planes_.for_each([&](int64_t plane) {
      const PixelWalk in(x_, plane), out(y_, plane);
      const T* x = args.in<T>(0) + in.first;
      for (int64_t o = 0; o < planes_.y_size(); ++o) {
        const PoolRange rows = adaptive_range(o / y_.shape[3], x_.shape[2], y_.shape[2]),
                        columns = adaptive_range(o % y_.shape[3], x_.shape[3], y_.shape[3]);
        int64_t best = rows.begin * x_.shape[3] + columns.begin;
        T value = x[best * in.step];
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            const int64_t at = row * x_.shape[3] + column;
            const T candidate = x[at * in.step];
            const bool larger = exceeds(candidate, value);
            value = larger ? candidate : value;
            best = larger ? at : best;
          }
        }
        args.out<T>(0)[out.first + o * out.step] = value;
        args.out<int32_t>(1)[out.first + o * out.step] = static_cast<int32_t>(best);
      }
    });
  }

 private:
  TensorType x_, y_;
  Planes planes_;
};

class AdaptiveMaxBackward : public PreparedKernel {
 public:
  explicit AdaptiveMaxBackward(const KernelQuery& q) : grad_(q.in(0)), dx_(q.out(0)), planes_(dx_.shape, grad_.shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    planes_.for_each([&](int64_t plane) {
      const PixelWalk in(grad_, plane), out(dx_, plane);
      float* dx = args.out<float>(0) + out.first;
      for (int64_t i = 0; i < planes_.x_size(); ++i) dx[i * out.step] = 0;
      for (int64_t o = 0; o < planes_.y_size(); ++o) {
        const int64_t at = in.first + o * in.step;
        dx[args.in<int32_t>(1)[at] * out.step] += args.in<float>(0)[at];
      }
    });
  }

 private:
  TensorType grad_, dx_;
  Planes planes_;
};

Support supports_formats(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  for (const TensorType* type : q.context.inputs) {
    if (type != nullptr && !(type->format == x.format)) return Support::no("inputs of different formats");
  }
  for (const TensorType* type : q.context.outputs) {
    if (!(type->format == x.format)) return Support::no("output in another format");
  }
  return Support::yes();
}
Support supports_floats(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports_formats(q);
}
Support supports_adaptive_max(const KernelQuery& q) {
  const DType dtype = q.in(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kU8 && dtype != DType::kI8) return Support::no(cat("dtype ", dtype));
  return supports_formats(q);
}
Support supports(const KernelQuery& q) {
  if (!q.in(0).format.is_contiguous()) return Support::no(cat("format ", q.in(0).format));
  return supports_floats(q);
}

std::unique_ptr<PreparedKernel> prepare_adaptive_max(const KernelQuery& q) {
  if (q.in(0).dtype == DType::kU8) return std::make_unique<AdaptiveMax<uint8_t>>(q);
  if (q.in(0).dtype == DType::kI8) return std::make_unique<AdaptiveMax<int8_t>>(q);
  return std::make_unique<AdaptiveMax<float>>(q);
}
std::unique_ptr<PreparedKernel> prepare_avg(const KernelQuery& q) {
  return windowed(q.attrs<AvgPool2dAttrs>(), q.in(0).shape, q.out(0).shape, false);
}
std::unique_ptr<PreparedKernel> prepare_avg_backward(const KernelQuery& q) {
  return windowed(q.attrs<AvgPool2dBackwardAttrs>(), q.out(0).shape, q.in(0).shape, true);
}
std::unique_ptr<PreparedKernel> prepare_adaptive_avg(const KernelQuery& q) { return adaptive(q.in(0).shape, q.out(0).shape, false); }
std::unique_ptr<PreparedKernel> prepare_adaptive_avg_backward(const KernelQuery& q) {
  return adaptive(q.out(0).shape, q.in(0).shape, true);
}

/// Means of images that fill their arrays; extents.cpp has those of others.
Support supports_whole_images(const KernelQuery& q) {
  if (q.has(1)) return Support::no("extents");
  return supports(q);
}

}  // namespace

const Algorithm algorithm::kMaxPoolPlanes{supports, prepare_as<MaxPool2d>};
const Algorithm algorithm::kMaxPoolPlanesBackward{supports, prepare_as<MaxPool2dBackward>};
const Algorithm algorithm::kAvgPoolPlanes{supports, prepare_avg};
const Algorithm algorithm::kAvgPoolPlanesBackward{supports, prepare_avg_backward};
const Algorithm algorithm::kAdaptiveAvgPoolPlanes{supports_whole_images, prepare_adaptive_avg};
const Algorithm algorithm::kAdaptiveAvgPoolPlanesBackward{supports, prepare_adaptive_avg_backward};
const Algorithm algorithm::kAdaptiveMaxPool{supports_adaptive_max, prepare_adaptive_max};
const Algorithm algorithm::kAdaptiveMaxPoolBackward{supports_floats, prepare_as<AdaptiveMaxBackward>};

}  // namespace galley
