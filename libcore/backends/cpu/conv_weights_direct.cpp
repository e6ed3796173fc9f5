// direct: the weight gradient of dense convolutions in f32 with at most 4 input channels, such as a network's first layer, on channels_last
// images.
//
// For an output pixel, a row of the kernel reads one run of columns times channels consecutive values of the padded line. A register tile
// multiplies up to 6 of these values (12 with AVX-512), broadcast, by one or two vectors of output channels, and is accumulated over the
// lines of a block. So no lane is wasted on missing input channels. Lines of x are copied with their padding; the gradient is copied only
// where there are several panels of outputs. 2 pixels inputs outputs taps operations; FMA bounds it. A direct convolution as in Georganas
// et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures" (2018).
//
// The batch is divided into parts for any number of threads: bits depend on the instruction set, and on the threads only where these exceed
// the parts.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/conv_weights_direct.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_CONV_WEIGHTS_DIRECT_ONCE
#define GALLEY_CONV_WEIGHTS_DIRECT_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley::direct {

/// Output lines: `grad` points to the first channel of a panel, `x` to the first value of a tile.
struct Lines {
  const float *grad, *x;
  int64_t grad_step, grad_line;  // floats from pixel to pixel, and from line to line
  int64_t x_step, x_line;
  int64_t lines, width;
  const char* prefetch;  // of the next block, `prefetch_step` bytes per pixel
  int64_t prefetch_step;
};

}  // namespace galley::direct

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::direct {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3
constexpr int kMostValues = 12;  // of a tile: with two vectors of each, and those of the gradient, they fit the registers
#else
constexpr int kMostValues = 6;
#endif

#if GALLEY_WIDE_TARGET
/// sums[value][lane of kVectors vectors] += over pixels, run's value times the gradient.
template <int kVectors, int kValues>
void add_tile(const Lines& at, float* HWY_RESTRICT sums) {
  using galley::HWY_NAMESPACE::each;
  const hn::CappedTag<float, 16> d;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d)), kSums = kVectors * kValues;
  const char* prefetch = at.prefetch;
  const int64_t prefetch_step = at.prefetch_step, x_step = at.x_step, grad_step = at.grad_step;
  hn::Vec<decltype(d)> sum[kSums];
  each<kSums>([&](auto i) GALLEY_LOOP { sum[i] = hn::Zero(d); });
  for (int64_t l = 0; l < at.lines; ++l) {
    const float* HWY_RESTRICT x = at.x + l * at.x_line;
    const float* HWY_RESTRICT grad = at.grad + l * at.grad_line;
    for (int64_t w = 0; w < at.width; ++w, x += x_step, grad += grad_step, prefetch += prefetch_step) {
      __builtin_prefetch(prefetch, 0, 2);
      hn::Vec<decltype(d)> g[kVectors];
      each<kVectors>([&](auto v) GALLEY_LOOP { g[v] = hn::LoadU(d, grad + v * kWide); });
      each<kValues>([&](auto i) GALLEY_LOOP {
        const auto value = hn::Set(d, x[i]);
        each<kVectors>([&](auto v) GALLEY_LOOP { sum[i * kVectors + v] = hn::MulAdd(value, g[v], sum[i * kVectors + v]); });
      });
    }
  }
  each<kSums>([&](auto i) GALLEY_LOOP { hn::StoreU(hn::Add(hn::LoadU(d, sums + i * kWide), sum[i]), d, sums + i * kWide); });
}

template <int kVectors, int kValues = kMostValues>
void add_values(const Lines& at, int64_t values, float* sums) {
  if constexpr (kValues > 0) {
    if (values == kValues) return add_tile<kVectors, kValues>(at, sums);
    add_values<kVectors, kValues - 1>(at, values, sums);
  }
}
void add(const Lines& at, int vectors, int64_t values, float* sums) {
  vectors == 2 ? add_values<2>(at, values, sums) : add_values<1>(at, values, sums);
}
#else
void add(const Lines&, int, int64_t, float*) {}  // supports says no
#endif
int most_values() { return kMostValues; }
int64_t lanes() { return static_cast<int64_t>(hn::Lanes(hn::CappedTag<float, 16>())); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::direct
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace direct {
HWY_EXPORT(add);
HWY_EXPORT(most_values);
HWY_EXPORT(lanes);
}  // namespace direct

namespace {

constexpr int64_t kPixels = conv_threshold::kDirectPixels.value;  // of a block, about
constexpr int64_t kMostParts = conv_threshold::kDirectParts.value;

int64_t lanes() { return HWY_DYNAMIC_DISPATCH(direct::lanes)(); }
/// Rounds up to whole cache lines.
int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }

class DirectConvWeights : public PreparedKernel {
 public:
  explicit DirectConvWeights(const KernelQuery& q) : x_(q.in(0).shape), y_(q.in(1).shape), w_(q.out(0)), offsets_(w_), threads_(q.threads) {
    const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
    stride_ = pair(a.stride);
    padding_ = pair(a.padding);
    vectors_ = y_[1] >= 2 * lanes() ? 2 : 1;
    panel_ = vectors_ * lanes();
    panels_ = (y_[1] + panel_ - 1) / panel_;
    run_ = w_.shape[3] * x_[1];
    lines_ = std::clamp<int64_t>(kPixels / y_[3], 1, y_[2]);
    blocks_ = (y_[2] + lines_ - 1) / lines_;
    line_floats_ = std::max(x_[3] + 2 * padding_[1], (y_[3] - 1) * stride_[1] + w_.shape[3]) * x_[1];
    parts_ = std::min(std::max<int64_t>(kMostParts, threads_), x_[0] * blocks_);
    sums_ = aligned(panels_ * w_.shape[2] * run_ * panel_);
    x_workspace_ = aligned(((lines_ - 1) * stride_[0] + w_.shape[2]) * line_floats_);
    grad_workspace_ = packs() ? aligned(lines_ * y_[3] * panel_) : 0;
  }
  int64_t scratch_bytes() const override { return (parts_ * sums_ + threads_ * (x_workspace_ + grad_workspace_)) * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    auto* sums = static_cast<float*>(args.scratch);
    float* workspaces = sums + parts_ * sums_;
    parallel_tasks(parts_, threads_, [&](int64_t part, int64_t slot) {
      float *own = sums + part * sums_, *workspace = workspaces + slot * (x_workspace_ + grad_workspace_);
      std::fill_n(own, sums_, 0.0f);
      for (int64_t block = x_[0] * blocks_ * part / parts_; block < x_[0] * blocks_ * (part + 1) / parts_; ++block)
        add(args, block / blocks_, block % blocks_ * lines_, workspace, own);
    });
    write(sums, args.out<float>(0));
  }

 private:
  /// Is the gradient copied panel by panel, because the pixels of a panel are not consecutive?
  bool packs() const { return panels_ > 1; }
  /// The last panel repeats channels of the one before it, so that it is full.
  int64_t first_of(int64_t panel) const { return std::min(panel * panel_, y_[1] - panel_); }

  /// Adds the products of a block of output lines of an image; `line` is the first.
  void add(const KernelArgs& args, int64_t image, int64_t line, float* x_workspace, float* sums) const {
    const int64_t lines = std::min(lines_, y_[2] - line), pixels = lines * y_[3], most = HWY_DYNAMIC_DISPATCH(direct::most_values)(),
                  tiles = (run_ + most - 1) / most;
    const float *x = args.in<float>(0) + image * x_[2] * x_[3] * x_[1], *grad = args.in<float>(1) + (image * y_[2] + line) * y_[3] * y_[1];
    const int64_t top = line * stride_[0] - padding_[0], rows = (lines - 1) * stride_[0] + w_.shape[2],
                  calls = panels_ * w_.shape[2] * tiles;
    pack_rows(x, top, rows, x_workspace);
    // Each call prefetches a part of the next block's gradient, the last one the new lines of x.
    const auto prefetch_of = [&](int64_t call) -> std::pair<const char*, int64_t> {
      const int64_t shares = std::max<int64_t>(1, calls - 1), step = (y_[1] * 4 + shares - 1) / shares;
      if (call < shares) return {reinterpret_cast<const char*>(grad + pixels * y_[1]) + call * step * pixels, step};
      return {reinterpret_cast<const char*>(x + (top + rows) * x_[3] * x_[1]), lines * stride_[0] * x_[3] * x_[1] * 4 / pixels};
    };
    int64_t call = 0;
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const float* from = grad + first_of(panel);
      if (packs()) {
        float* packed = x_workspace + x_workspace_;
        for (int64_t p = 0; p < pixels; ++p) std::memcpy(packed + p * panel_, from + p * y_[1], static_cast<size_t>(panel_) * 4);
        from = packed;
      }
      const int64_t step = packs() ? panel_ : y_[1];
      for (int64_t row = 0; row < w_.shape[2]; ++row) {
        float* to = sums + (panel * w_.shape[2] + row) * run_ * panel_;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t first = run_ * tile / tiles, values = run_ * (tile + 1) / tiles - first;
          const auto [prefetched, prefetch_step] = prefetch_of(call++);
          const direct::Lines at{from,
                                 x_workspace + row * line_floats_ + first,
                                 step,
                                 y_[3] * step,
                                 stride_[1] * x_[1],
                                 stride_[0] * line_floats_,
                                 lines,
                                 y_[3],
                                 prefetched,
                                 prefetch_step};
          HWY_DYNAMIC_DISPATCH(direct::add)(at, vectors_, values, to + first * panel_);
        }
      }
    }
  }

  /// Lines [first, first + count) of an image, some of which may be outside it, with their padding.
  void pack_rows(const float* x, int64_t first, int64_t count, float* to) const {
    const int64_t left = padding_[1] * x_[1], values = x_[3] * x_[1];
    for (int64_t row = first; row < first + count; ++row, to += line_floats_) {
      if (row < 0 || row >= x_[2]) {
        std::fill_n(to, line_floats_, 0.0f);
        continue;
      }
      std::fill_n(to, left, 0.0f);
      std::memcpy(to + left, x + row * values, static_cast<size_t>(values) * 4);
      std::fill(to + left + values, to + line_floats_, 0.0f);
    }
  }

  /// Adds the parts in their order and writes the sums in the weight's format.
  void write(const float* sums, float* out) const {
    if (w_.bytes() > w_.shape.elements() * 4) std::memset(out, 0, static_cast<size_t>(w_.bytes()));  // a blocked format's padding
    parallel_for(y_[1], 8, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const int64_t panel = o / panel_, lane = o - first_of(panel);
        for (int64_t row = 0; row < w_.shape[2]; ++row) {
          for (int64_t i = 0; i < run_; ++i) {
            const float* at = sums + ((panel * w_.shape[2] + row) * run_ + i) * panel_ + lane;
            float total = *at;
            for (int64_t part = 1; part < parts_; ++part) total += at[part * sums_];
            const int64_t tap = row * w_.shape[3] + i / x_[1];
            out[offsets_.out[static_cast<size_t>(o)] + offsets_.in[static_cast<size_t>(i % x_[1])] +
                offsets_.tap[static_cast<size_t>(tap)]] = total;
          }
        }
      }
    });
  }

  Shape x_, y_;
  TensorType w_;
  WeightTerms offsets_;
  int64_t threads_;
  std::array<int64_t, 2> stride_{}, padding_{};
  int vectors_ = 1;
  int64_t panel_ = 0, panels_ = 0;                    // output channels of a panel; panels
  int64_t run_ = 0;                                   // values
  int64_t lines_ = 0, blocks_ = 0, line_floats_ = 0;  // of a block, of an image; of a packed line of x
  int64_t parts_ = 0, sums_ = 0, x_workspace_ = 0, grad_workspace_ = 0;
};

Support supports(const KernelQuery& q) {
  if (const Support dense = is_dense_weight_gradient(q); !dense) return dense;
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("vectors of 8 floats are missing");
  const auto dilation = pair(q.attrs<Conv2dBackwardWeightsAttrs>().dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  const Shape& w = q.out(0).shape;
  if (w[1] > conv_threshold::kDirectChannels.value) return Support::no(cat(w[1], " input channels"));
  if (w[3] == 1) return Support::no("a kernel of one column");
  if (w[0] < lanes()) return Support::no(cat(w[0], " output channels: too few for a vector"));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kConvWeightsDirect{supports, prepare_as<DirectConvWeights>};

}  // namespace galley

#endif  // HWY_ONCE
