// Pooling of channels_last images of f32 and bf16 (sums in float). Channels fill the vectors. The maximum of a window stays in registers
// while its pixels (taps) are read, each once for each window that holds it; its gradient adds to those of the taps that had the maximum,
// image by image. Means keep the sums of 64 channels in the first-level cache. All of it is bound by memory or caches: a comparison,
// selection or addition for each value read. Contiguous images: pool_contiguous.cpp.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/pool.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"
#include "libcore/backends/cpu/vector_math.h"

#ifndef GALLEY_POOL_ONCE
#define GALLEY_POOL_ONCE

#include <array>

#include "libcore/ops/pool.h"

namespace galley::pool_loops {

/// The pixels of a window that lie inside the image, in order, and their numbers in the window.
template <class T>
struct Taps {
  std::array<T*, 256> pixels;
  std::array<uint8_t, 256> numbers;
  int64_t count = 0;
};

/// Pixels of an image that a result is the mean of, and what their sum is scaled by.
struct Cell {
  PoolRange rows, columns;
  float scale = 1;
};

}  // namespace galley::pool_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::pool_loops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using galley::HWY_NAMESPACE::each;
using galley::HWY_NAMESPACE::load_floats;
using galley::HWY_NAMESPACE::store_floats;

/// The largest values of kVectors vectors of channels and the numbers of their taps; the first of equal ones, NaN as the largest.
template <int kVectors, class D, class T>
HWY_INLINE void largest_of(D d, const Taps<const T>& taps, int64_t channel, T* best, uint8_t* index) {
  const hn::RebindToSigned<D> numbers;
  const hn::Rebind<uint8_t, D> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> most[kVectors];
  hn::Vec<decltype(numbers)> number[kVectors];
  each<kVectors>([&](auto v) GALLEY_LOOP {
    most[v] = load_floats(d, taps.pixels[0] + channel + v * lanes);
    number[v] = hn::Set(numbers, taps.numbers[0]);
  });
  for (int64_t i = 1; i < taps.count; ++i) {
    const T* x = taps.pixels[static_cast<size_t>(i)] + channel;
    const auto at = hn::Set(numbers, taps.numbers[static_cast<size_t>(i)]);
    each<kVectors>([&](auto v) GALLEY_LOOP {
      const auto value = load_floats(d, x + v * lanes);
      const auto larger = hn::AndNot(hn::Le(value, most[v]), hn::Eq(most[v], most[v]));
      most[v] = hn::IfThenElse(larger, value, most[v]);
      number[v] = hn::IfThenElse(hn::RebindMask(numbers, larger), at, number[v]);
    });
  }
  each<kVectors>([&](auto v) GALLEY_LOOP {
    store_floats(most[v], d, best + channel + v * lanes);
    hn::StoreU(hn::DemoteTo(bytes, number[v]), bytes, index + channel + v * lanes);
  });
}

/// One pixel of the result.
template <class T>
HWY_INLINE void largest(const Taps<const T>& taps, T* best, uint8_t* index, int64_t channels) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * lanes <= channels; c += 4 * lanes) largest_of<4>(d, taps, c, best, index);
  for (; c + lanes <= channels; c += lanes) largest_of<1>(d, taps, c, best, index);
  for (; c < channels; ++c) largest_of<1>(hn::CappedTag<float, 1>(), taps, c, best, index);
}
void largest_f32(const Taps<const float>& taps, float* best, uint8_t* index, int64_t channels) { largest(taps, best, index, channels); }
void largest_bf16(const Taps<const BFloat16>& taps, BFloat16* best, uint8_t* index, int64_t channels) {
  largest(taps, best, index, channels);
}

template <class D, class T>
HWY_INLINE void add_chosen_of(D d, const T* grad, const uint8_t* index, const Taps<float>& taps, int64_t channel) {
  const hn::RebindToSigned<D> numbers;
  const hn::Rebind<uint8_t, D> bytes;
  const auto g = load_floats(d, grad + channel);
  const auto number = hn::PromoteTo(numbers, hn::LoadU(bytes, index + channel));
  for (int64_t i = 0; i < taps.count; ++i) {
    float* dx = taps.pixels[static_cast<size_t>(i)] + channel;
    const auto chosen = hn::RebindMask(d, hn::Eq(number, hn::Set(numbers, taps.numbers[static_cast<size_t>(i)])));
    hn::StoreU(hn::Add(hn::LoadU(d, dx), hn::IfThenElseZero(chosen, g)), d, dx);
  }
}

/// Adds the gradient of one pixel of the result to those of the taps that it was taken from.
template <class T>
HWY_INLINE void add_chosen(const T* grad, const uint8_t* index, const Taps<float>& taps, int64_t channels) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= channels; c += lanes) add_chosen_of(d, grad, index, taps, c);
  for (; c < channels; ++c) add_chosen_of(hn::CappedTag<float, 1>(), grad, index, taps, c);
}
void add_chosen_f32(const float* grad, const uint8_t* index, const Taps<float>& taps, int64_t channels) {
  add_chosen(grad, index, taps, channels);
}
void add_chosen_bf16(const BFloat16* grad, const uint8_t* index, const Taps<float>& taps, int64_t channels) {
  add_chosen(grad, index, taps, channels);
}

// From here on loops that the compiler vectorizes.

void round_values(const float* x, BFloat16* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i];
}

/// The mean of a cell of an image [.,width,channels].
template <class T>
GALLEY_INLINE void mean(const T* image, const Cell& cell, int64_t width, int64_t channels, T* out) {
  constexpr int64_t kTogether = 64;  // channels whose sums stay in the first-level cache
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
void mean_f32(const float* image, const Cell& cell, int64_t width, int64_t channels, float* out) {
  mean(image, cell, width, channels, out);
}
void mean_bf16(const BFloat16* image, const Cell& cell, int64_t width, int64_t channels, BFloat16* out) {
  mean(image, cell, width, channels, out);
}

/// The gradient of a mean to all pixels of its cell: stored, or added where cells overlap.
template <bool kAdd, class T>
GALLEY_INLINE void spread(const T* grad, const Cell& cell, int64_t width, int64_t channels, T* image) {
  const float scale = cell.scale;
  for (int64_t row = cell.rows.begin; row < cell.rows.end; ++row) {
    for (int64_t column = cell.columns.begin; column < cell.columns.end; ++column) {
      T* dx = image + (row * width + column) * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const float share = static_cast<float>(grad[c]) * scale;
        dx[c] = kAdd ? static_cast<float>(dx[c]) + share : share;
      }
    }
  }
}
void add_to_cell(const float* grad, const Cell& cell, int64_t width, int64_t channels, float* image) {
  spread<true>(grad, cell, width, channels, image);
}
void set_cell_f32(const float* grad, const Cell& cell, int64_t width, int64_t channels, float* image) {
  spread<false>(grad, cell, width, channels, image);
}
void set_cell_bf16(const BFloat16* grad, const Cell& cell, int64_t width, int64_t channels, BFloat16* image) {
  spread<false>(grad, cell, width, channels, image);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::pool_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace pool_loops {

HWY_EXPORT(largest_f32);
HWY_EXPORT(largest_bf16);
HWY_EXPORT(add_chosen_f32);
HWY_EXPORT(add_chosen_bf16);
HWY_EXPORT(round_values);
HWY_EXPORT(mean_f32);
HWY_EXPORT(mean_bf16);
HWY_EXPORT(add_to_cell);
HWY_EXPORT(set_cell_f32);
HWY_EXPORT(set_cell_bf16);

}  // namespace pool_loops

namespace {

using pool_loops::Cell;
using pool_loops::Taps;

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

/// Finds the taps of window (h, w) in an image [H,W,channels].
template <class T>
void find_taps(const Window& window, const Shape& x, int64_t h, int64_t w, T* image, Taps<T>& taps) {
  taps.count = 0;
  for (int64_t kh = 0; kh < window.kernel[0]; ++kh) {
    const int64_t row = h * window.stride[0] - window.padding[0] + kh * window.dilation[0];
    if (row < 0 || row >= x[2]) continue;
    for (int64_t kw = 0; kw < window.kernel[1]; ++kw) {
      const int64_t column = w * window.stride[1] - window.padding[1] + kw * window.dilation[1];
      if (column < 0 || column >= x[3]) continue;
      const auto i = static_cast<size_t>(taps.count++);
      taps.pixels[i] = image + (row * x[3] + column) * x[1];
      taps.numbers[i] = static_cast<uint8_t>(kh * window.kernel[1] + kw);
    }
  }
}

// The loops by element type.
void largest(const Taps<const float>& taps, float* best, uint8_t* index, int64_t channels) {
  HWY_DYNAMIC_DISPATCH(pool_loops::largest_f32)(taps, best, index, channels);
}
void largest(const Taps<const BFloat16>& taps, BFloat16* best, uint8_t* index, int64_t channels) {
  HWY_DYNAMIC_DISPATCH(pool_loops::largest_bf16)(taps, best, index, channels);
}
void add_chosen(const float* grad, const uint8_t* index, const Taps<float>& taps, int64_t channels) {
  HWY_DYNAMIC_DISPATCH(pool_loops::add_chosen_f32)(grad, index, taps, channels);
}
void add_chosen(const BFloat16* grad, const uint8_t* index, const Taps<float>& taps, int64_t channels) {
  HWY_DYNAMIC_DISPATCH(pool_loops::add_chosen_bf16)(grad, index, taps, channels);
}
void cell_mean(const float* image, const Cell& cell, int64_t width, int64_t channels, float* out) {
  HWY_DYNAMIC_DISPATCH(pool_loops::mean_f32)(image, cell, width, channels, out);
}
void cell_mean(const BFloat16* image, const Cell& cell, int64_t width, int64_t channels, BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(pool_loops::mean_bf16)(image, cell, width, channels, out);
}
void set_cell(const float* grad, const Cell& cell, int64_t width, int64_t channels, float* image) {
  HWY_DYNAMIC_DISPATCH(pool_loops::set_cell_f32)(grad, cell, width, channels, image);
}
void set_cell(const BFloat16* grad, const Cell& cell, int64_t width, int64_t channels, BFloat16* image) {
  HWY_DYNAMIC_DISPATCH(pool_loops::set_cell_bf16)(grad, cell, width, channels, image);
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
      Taps<const T> taps;
      for (int64_t line = begin; line < end; ++line) {
        const T* image = args.in<T>(0) + line / y_[2] * x_[2] * x_[3] * channels;
        for (int64_t w = 0; w < y_[3]; ++w) {
          const int64_t at = (line * y_[3] + w) * channels;
          T* best = args.out<T>(0) + at;
          uint8_t* index = args.out<uint8_t>(1) + at;
          find_taps(window_, x_, line % y_[2], w, image, taps);
          if (taps.count > 0) {
            largest(taps, best, index, channels);
          } else {  // a dilated window around a smaller image
            std::memset(best, 0, static_cast<size_t>(channels) * sizeof(T));
            std::memset(index, 0, static_cast<size_t>(channels));
          }
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
      Taps<float> taps;
      for (int64_t slot = begin; slot < end; ++slot) {
        for (int64_t n = x_[0] * slot / slots_; n < x_[0] * (slot + 1) / slots_; ++n) {
          float* image = kDirect ? args.out<float>(0) + n * image_ : static_cast<float*>(args.scratch) + slot * image_;
          std::memset(image, 0, static_cast<size_t>(image_) * 4);
          for (int64_t h = 0; h < y_[2]; ++h) {
            for (int64_t w = 0; w < y_[3]; ++w) {
              const int64_t at = ((n * y_[2] + h) * y_[3] + w) * channels;
              find_taps(window_, x_, h, w, image, taps);
              add_chosen(args.in<T>(0) + at, args.in<uint8_t>(1) + at, taps, channels);
            }
          }
          if constexpr (!kDirect) HWY_DYNAMIC_DISPATCH(pool_loops::round_values)(image, args.out<T>(0) + n * image_, image_);
        }
      }
    });
  }

 private:
  static constexpr bool kDirect = std::is_same_v<T, float>;  // sums are added up in the result
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

/// Does each pixel belong to at most one cell?
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
          spread(args.in<T>(0) + (n * y_[2] * y_[3] + static_cast<int64_t>(i)) * channels, cells_[i], dx);
        }
      }
    });
  }

 private:
  void spread(const T* grad, const Cell& cell, T* dx) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!disjoint_) return HWY_DYNAMIC_DISPATCH(pool_loops::add_to_cell)(grad, cell, x_[3], x_[1], dx);
    }
    set_cell(grad, cell, x_[3], x_[1], dx);
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
  if (support && q.in(0).dtype == DType::kBF16 && !disjoint(cells(q), q.out(0).shape))
    return Support::no("windows overlap: sums of bf16 would be rounded for each window");
  return support;
}
std::vector<Cell> cells_of_avg(const KernelQuery& q) {
  return windowed_cells(q.attrs<AvgPool2dBackwardAttrs>(), q.out(0).shape, q.in(0).shape);
}
std::vector<Cell> cells_of_adaptive(const KernelQuery& q) { return adaptive_cells(q.out(0).shape, q.in(0).shape); }

/// Means of images that fill their arrays; extents.cpp has those of others.
Support supports_whole_images(const KernelQuery& q) {
  if (q.has(1)) return Support::no("extents");
  return supports(q);
}

}  // namespace

const Algorithm algorithm::kMaxPoolChannels{supports, prepare_max<MaxPool2d>};
const Algorithm algorithm::kMaxPoolChannelsBackward{supports, prepare_max<MaxPool2dBackward>};
const Algorithm algorithm::kAvgPoolChannels{supports, prepare_avg};
const Algorithm algorithm::kAvgPoolChannelsBackward{supports_average_backward<cells_of_avg>, prepare_avg_backward};
const Algorithm algorithm::kAdaptiveAvgPoolChannels{supports_whole_images, prepare_adaptive_avg};
const Algorithm algorithm::kAdaptiveAvgPoolChannelsBackward{supports_average_backward<cells_of_adaptive>, prepare_adaptive_avg_backward};

}  // namespace galley

#endif  // HWY_ONCE
