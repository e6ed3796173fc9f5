// Pooling on channels_last arrays of f32 and bf16: channels are the vector, sums are in float.

#include "libcore/ops/pool.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"

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
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}

// Each loop once as a template, and compiled for each instruction set by element type.

/// Keeps the larger value and its tap; the first of equal ones stays, NaN wins. Chosen by masks over Bits, an integer as wide as T: a
/// condition becomes a branch for some instruction sets, and the loop stays scalar.
template <class Bits, class T>
GALLEY_INLINE void keep_larger(const T* x, T* best, uint8_t* index, int64_t channels, uint8_t tap) {
  for (int64_t c = 0; c < channels; ++c) {
    const float value = x[c], kept = best[c];
    const int larger = -static_cast<int>((value > kept) | ((value != value) & (kept == kept)));
    const auto bits = static_cast<Bits>(larger);
    const auto byte = static_cast<uint8_t>(larger);
    best[c] = std::bit_cast<T>(static_cast<Bits>((std::bit_cast<Bits>(x[c]) & bits) | (std::bit_cast<Bits>(best[c]) & ~bits)));
    index[c] = static_cast<uint8_t>((tap & byte) | (index[c] & ~byte));
  }
}
GALLEY_CLONES void take_max(const float* x, float* best, uint8_t* index, int64_t channels, uint8_t tap) {
  keep_larger<uint32_t>(x, best, index, channels, tap);
}
GALLEY_CLONES void take_max(const BFloat16* x, BFloat16* best, uint8_t* index, int64_t channels, uint8_t tap) {
  keep_larger<uint16_t>(x, best, index, channels, tap);
}

template <class T>
GALLEY_INLINE void add_chosen(const T* grad, const uint8_t* index, float* dx, int64_t channels, uint8_t tap) {
  for (int64_t c = 0; c < channels; ++c) {
    const uint32_t chosen = -static_cast<uint32_t>(index[c] == tap);
    dx[c] += std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(grad[c])) & chosen);
  }
}
GALLEY_CLONES void add_where(const float* grad, const uint8_t* index, float* dx, int64_t channels, uint8_t tap) {
  add_chosen(grad, index, dx, channels, tap);
}
GALLEY_CLONES void add_where(const BFloat16* grad, const uint8_t* index, float* dx, int64_t channels, uint8_t tap) {
  add_chosen(grad, index, dx, channels, tap);
}

GALLEY_CLONES void round_to(const float* x, BFloat16* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i];
}

GALLEY_CLONES void add_scaled(const float* x, float* y, int64_t channels, float scale) {
  for (int64_t c = 0; c < channels; ++c) y[c] += x[c] * scale;
}

template <class T>
GALLEY_INLINE void scaled_copy(const T* x, T* y, int64_t channels, float scale) {
  for (int64_t c = 0; c < channels; ++c) y[c] = static_cast<float>(x[c]) * scale;
}
GALLEY_CLONES void set_scaled(const float* x, float* y, int64_t channels, float scale) { scaled_copy(x, y, channels, scale); }
GALLEY_CLONES void set_scaled(const BFloat16* x, BFloat16* y, int64_t channels, float scale) { scaled_copy(x, y, channels, scale); }

/// Pixels of an image that a result is the mean of, and what their sum is scaled by.
struct Cell {
  PoolRange rows, columns;
  float scale = 1;
};

template <class T>
GALLEY_INLINE void sum_cell(const T* image, const Cell& cell, int64_t width, int64_t channels, T* out) {
  constexpr int64_t kTogether = 64;  // channels whose sums stay near
  for (int64_t first = 0; first < channels; first += kTogether) {
    const int64_t count = channels - first < kTogether ? channels - first : kTogether;
    float sums[kTogether] = {};
    for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
      for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) {
        const T* x = image + (row * width + column) * channels + first;
        if (count == kTogether) {
          for (int64_t c = 0; c < kTogether; ++c) sums[c] += static_cast<float>(x[c]);
        } else {
          for (int64_t c = 0; c < count; ++c) sums[c] += static_cast<float>(x[c]);
        }
      }
    }
    for (int64_t c = 0; c < count; ++c) out[first + c] = sums[c] * cell.scale;
  }
}
GALLEY_CLONES void cell_mean(const float* image, const Cell& cell, int64_t width, int64_t channels, float* out) {
  sum_cell(image, cell, width, channels, out);
}
GALLEY_CLONES void cell_mean(const BFloat16* image, const Cell& cell, int64_t width, int64_t channels, BFloat16* out) {
  sum_cell(image, cell, width, channels, out);
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

template <class T>
class MaxPool2d : public PreparedKernel {
 public:
  explicit MaxPool2d(const KernelQuery& q) : window_(window_of(q.attrs<MaxPool2dAttrs>())), x_(q.in(0).shape), y_(q.out(0).shape) {
    window_.dilation = pair(q.attrs<MaxPool2dAttrs>().dilation);
  }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    parallel_for(y_[0] * y_[2], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t n = line / y_[2], h = line % y_[2];
        for (int64_t w = 0; w < y_[3]; ++w) {
          T* best = args.out<T>(0) + (line * y_[3] + w) * channels;
          auto* index = args.out<uint8_t>(1) + (line * y_[3] + w) * channels;
          bool first = true;
          for_taps(window_, x_, h, w, [&](int64_t pixel, uint8_t tap) {
            const T* in = args.in<T>(0) + (n * x_[2] * x_[3] + pixel) * channels;
            if (first) {
              std::memcpy(best, in, static_cast<size_t>(channels) * sizeof(T));
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

template <class T>
class MaxPool2dBackward : public PreparedKernel {
 public:
  explicit MaxPool2dBackward(const KernelQuery& q)
      : window_(window_of(q.attrs<MaxPool2dBackwardAttrs>())), x_(q.out(0).shape), y_(q.in(0).shape) {
    window_.dilation = pair(q.attrs<MaxPool2dBackwardAttrs>().dilation);
    image_ = x_[1] * x_[2] * x_[3];
    slots_ = std::clamp<int64_t>(q.threads, 1, std::max<int64_t>(1, x_[0]));
  }
  int64_t scratch_bytes() const override { return kDirect ? 0 : slots_ * image_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    // Whole images: windows of one may overlap, those of two never do.
    parallel_for(slots_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t n = x_[0] * slot / slots_; n < x_[0] * (slot + 1) / slots_; ++n) {
          float* image = kDirect ? args.out<float>(0) + n * image_ : static_cast<float*>(args.scratch) + slot * image_;
          std::memset(image, 0, static_cast<size_t>(image_) * 4);
          for (int64_t h = 0; h < y_[2]; ++h) {
            for (int64_t w = 0; w < y_[3]; ++w) {
              const int64_t at = ((n * y_[2] + h) * y_[3] + w) * channels;
              for_taps(window_, x_, h, w, [&](int64_t pixel, uint8_t tap) {
                add_where(args.in<T>(0) + at, args.in<uint8_t>(1) + at, image + pixel * channels, channels, tap);
              });
            }
          }
          if constexpr (!kDirect) round_to(image, args.out<T>(0) + n * image_, image_);
        }
      }
    });
  }

 private:
  static constexpr bool kDirect = std::is_same_v<T, float>;  // sums lie where results do
  Window window_;
  Shape x_, y_;
  int64_t image_ = 0, slots_ = 1;
};

/// Average pooling, windowed or adaptive: cells of each window.
template <class T>
class Average : public PreparedKernel {
 public:
  Average(const Shape& x, const Shape& y, std::vector<Cell> cells) : x_(x), y_(y), cells_(std::move(cells)) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(y_[0] * y_[2], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* image = args.in<T>(0) + line / y_[2] * x_[1] * x_[2] * x_[3];
        for (int64_t w = 0; w < y_[3]; ++w)
          cell_mean(image, cells_[static_cast<size_t>(line % y_[2] * y_[3] + w)], x_[3], x_[1],
                    args.out<T>(0) + (line * y_[3] + w) * x_[1]);
      }
    });
  }

 private:
  Shape x_, y_;
  std::vector<Cell> cells_;  // H' x W'
};

/// Does no pixel lie in two cells?
bool disjoint(const std::vector<Cell>& cells, const Shape& x) {
  std::vector<bool> taken(static_cast<size_t>(x[2] * x[3]));
  for (const Cell& cell : cells) {
    for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
      for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) {
        const auto pixel = static_cast<size_t>(row * x[3] + column);
        if (taken[pixel]) return false;
        taken[pixel] = true;
      }
    }
  }
  return true;
}

template <class T>
class AverageBackward : public PreparedKernel {
 public:
  AverageBackward(const Shape& x, const Shape& y, std::vector<Cell> cells)
      : x_(x), y_(y), cells_(std::move(cells)), disjoint_(disjoint(cells_, x)) {
    int64_t covered = 0;
    for (const Cell& cell : cells_) covered += (cell.rows.end - cell.rows.begin) * (cell.columns.end - cell.columns.begin);
    whole_ = disjoint_ && covered == x[2] * x[3];
  }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1], image = x_[1] * x_[2] * x_[3];
    parallel_for(x_[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        T* dx = args.out<T>(0) + n * image;
        if (!whole_) std::memset(dx, 0, static_cast<size_t>(image) * sizeof(T));
        for (size_t i = 0; i < cells_.size(); ++i) {
          const Cell& cell = cells_[i];
          const T* grad = args.in<T>(0) + (n * y_[2] * y_[3] + static_cast<int64_t>(i)) * channels;
          for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
            for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column)
              add(grad, dx + (row * x_[3] + column) * channels, channels, cell.scale);
          }
        }
      }
    });
  }

 private:
  void add(const T* grad, T* dx, int64_t channels, float scale) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!disjoint_) return add_scaled(grad, dx, channels, scale);
    }
    set_scaled(grad, dx, channels, scale);
  }
  Shape x_, y_;
  std::vector<Cell> cells_;
  bool disjoint_, whole_ = false;
};

template <class Attrs>
std::vector<Cell> windowed_cells(const Attrs& a, const Shape& x, const Shape& y) {
  const Window window = window_of(a);
  std::vector<Cell> cells;
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Cell cell{pool_range(h, x[2], window.kernel[0], window.stride[0], window.padding[0]),
                pool_range(w, x[3], window.kernel[1], window.stride[1], window.padding[1]), 1};
      const int64_t inside = (cell.rows.end - cell.rows.begin) * (cell.columns.end - cell.columns.begin);
      cell.scale = 1.0f / static_cast<float>(a.count_include_pad ? cell.rows.size * cell.columns.size : inside);
      cells.push_back(cell);
    }
  }
  return cells;
}

std::vector<Cell> adaptive_cells(const Shape& x, const Shape& y) {
  std::vector<Cell> cells;
  for (int64_t h = 0; h < y[2]; ++h) {
    for (int64_t w = 0; w < y[3]; ++w) {
      Cell cell{adaptive_range(h, x[2], y[2]), adaptive_range(w, x[3], y[3]), 1};
      cell.scale = 1.0f / static_cast<float>(cell.rows.size * cell.columns.size);
      cells.push_back(cell);
    }
  }
  return cells;
}

/// The kernel for the type of input 0.
template <template <class> class Kind, class... Parts>
std::unique_ptr<PreparedKernel> typed(const KernelQuery& q, Parts&&... parts) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<Kind<BFloat16>>(std::forward<Parts>(parts)...);
  return std::make_unique<Kind<float>>(std::forward<Parts>(parts)...);
}

template <template <class> class Kind>
std::unique_ptr<PreparedKernel> prepare_max(const KernelQuery& q) {
  return typed<Kind>(q, q);
}
std::unique_ptr<PreparedKernel> prepare_avg(const KernelQuery& q) {
  const Shape &x = q.in(0).shape, &y = q.out(0).shape;
  return typed<Average>(q, x, y, windowed_cells(q.attrs<AvgPool2dAttrs>(), x, y));
}
std::unique_ptr<PreparedKernel> prepare_avg_backward(const KernelQuery& q) {
  const Shape &x = q.out(0).shape, &y = q.in(0).shape;
  return typed<AverageBackward>(q, x, y, windowed_cells(q.attrs<AvgPool2dBackwardAttrs>(), x, y));
}
std::unique_ptr<PreparedKernel> prepare_adaptive_avg(const KernelQuery& q) {
  const Shape &x = q.in(0).shape, &y = q.out(0).shape;
  return typed<Average>(q, x, y, adaptive_cells(x, y));
}
std::unique_ptr<PreparedKernel> prepare_adaptive_avg_backward(const KernelQuery& q) {
  const Shape &x = q.out(0).shape, &y = q.in(0).shape;
  return typed<AverageBackward>(q, x, y, adaptive_cells(x, y));
}

/// Where cells overlap, sums of bf16 would be rounded each time.
template <std::vector<Cell> (*cells)(const KernelQuery&)>
Support supports_average_backward(const KernelQuery& q) {
  const Support support = supports(q);
  if (support && q.in(0).dtype == DType::kBF16 && !disjoint(cells(q), q.out(0).shape)) return Support::no("overlapping windows of bf16");
  return support;
}
std::vector<Cell> cells_of_avg(const KernelQuery& q) {
  return windowed_cells(q.attrs<AvgPool2dBackwardAttrs>(), q.out(0).shape, q.in(0).shape);
}
std::vector<Cell> cells_of_adaptive(const KernelQuery& q) { return adaptive_cells(q.out(0).shape, q.in(0).shape); }

const std::array<Kernel, 6> kKernels{
    {{"max_pool2d", "cpu", supports, prepare_max<MaxPool2d>},
     {"max_pool2d_backward", "cpu", supports, prepare_max<MaxPool2dBackward>},
     {"avg_pool2d", "cpu", supports, prepare_avg},
     {"avg_pool2d_backward", "cpu", supports_average_backward<cells_of_avg>, prepare_avg_backward},
     {"adaptive_avg_pool2d", "cpu", supports, prepare_adaptive_avg},
     {"adaptive_avg_pool2d_backward", "cpu", supports_average_backward<cells_of_adaptive>, prepare_adaptive_avg_backward}}};

}  // namespace

std::span<const Kernel> cpu_pool() { return kKernels; }

}  // namespace galley
