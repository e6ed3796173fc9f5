// The kernels' side of Winograd's convolutions: 3 x 3 kernels transformed into panels for multiply_packed, and their gradient, which is the adjoint of
// the forward pass: images and the results' gradients are transformed, multiplied over the tiles position by position, and the sums transformed back.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/kernels/cpu/winograd_weights.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_WINOGRAD_WEIGHTS_ONCE
#define GALLEY_WINOGRAD_WEIGHTS_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/winograd.h"

namespace galley::winograd {

constexpr int64_t kPanel = 16;

/// sums[i][o] += over k of a[k][i] b[k][o] for `rows` i and the 16 o of each panel.
struct TileProduct {
  const float* a;
  const float* b;
  float* sums;
  int64_t a_step, b_step, sum_step;  // floats from one k (sums: i) to the next
  int64_t depth, rows, panels;
  bool first;  // sums are set, not added to
};

}  // namespace galley::winograd

#endif

#include "libcore/kernels/cpu/winograd_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::winograd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
// Never called: has_wide_vectors.
void transform_kernels(const float*, float*, int64_t) {}
void transform_kernel_gradient(const float*, int64_t, float*) {}
void add_products(const TileProduct&) {}
#else

/// 16 kernels [tap][16] -> [position][16], positions `position` floats apart.
void transform_kernels(const float* HWY_RESTRICT taps, float* HWY_RESTRICT to, int64_t position) {
  const Floats d;
  for (int64_t o = 0; o < kPanel; o += kWide) {
    transform_tile(
        kernel_line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::LoadU(d, taps + (i * kTaps + j) * kPanel + o); },
        [&](int64_t i, int64_t j, V value) HWY_ATTR { hn::StoreU(value, d, to + (i * kIn + j) * position + o); });
  }
}

/// Sums [position][16], positions `position` floats apart -> gradients [tap][16].
void transform_kernel_gradient(const float* HWY_RESTRICT sums, int64_t position, float* HWY_RESTRICT taps) {
  const Floats d;
  for (int64_t o = 0; o < kPanel; o += kWide) {
    transform_tile(
        kernel_gradient_line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::LoadU(d, sums + (i * kIn + j) * position + o); },
        [&](int64_t i, int64_t j, V value) HWY_ATTR { hn::StoreU(value, d, taps + (i * kTaps + j) * kPanel + o); });
  }
}

constexpr int kParts = static_cast<int>(kPanel / kWide);
constexpr int64_t kRows = kWide == 16 ? 12 : 6;
constexpr int64_t kPanels = kWide == 16 ? 2 : 1;  // at once: with one, each product of whole vectors would load its own factor

template <int kCount, int kVectors>
HWY_INLINE void add_rows(const TileProduct& p, int64_t row, int64_t column) {
  const Floats d;
  V sum[kCount][kVectors];
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::Zero(d);
  }
  const float* HWY_RESTRICT a = p.a + row;
  const float* HWY_RESTRICT b = p.b + column;
  for (int64_t k = 0; k < p.depth; ++k, a += p.a_step, b += p.b_step) {
    V right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + j * kWide);
    for (int i = 0; i < kCount; ++i) {
      const V left = hn::Set(d, a[i]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      float* to = p.sums + (row + i) * p.sum_step + column + j * kWide;
      hn::StoreU(p.first ? sum[i][j] : hn::Add(hn::LoadU(d, to), sum[i][j]), d, to);
    }
  }
}

template <int kVectors, int kCount = static_cast<int>(kRows)>
void add_some_rows(const TileProduct& p, int64_t row, int64_t column) {
  if constexpr (kCount > 1) {
    if (p.rows - row < kCount) return add_some_rows<kVectors, kCount - 1>(p, row, column);
  }
  add_rows<kCount, kVectors>(p, row, column);
}

void add_products(const TileProduct& p) {
  int64_t panel = 0;
  for (; kPanels > 1 && panel + kPanels <= p.panels; panel += kPanels) {
    for (int64_t row = 0; row < p.rows; row += kRows) add_some_rows<static_cast<int>(kPanels) * kParts>(p, row, panel * kPanel);
  }
  for (; panel < p.panels; ++panel) {
    for (int64_t row = 0; row < p.rows; row += kRows) add_some_rows<kParts>(p, row, panel * kPanel);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::winograd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace winograd {
HWY_EXPORT(transform_kernels);
HWY_EXPORT(transform_kernel_gradient);
HWY_EXPORT(add_products);
}  // namespace winograd

namespace {

using namespace winograd;

constexpr int64_t kKernelTaps = kTaps * kTaps;

/// The format of weights and of their gradients that is read and written by whole vectors.
MemoryFormat panel_format() { return MemoryFormat::blocked("Acdb16a"); }

/// Offsets of a weight's elements are sums of one term for each index, whatever the format.
class WeightOffsets {
 public:
  explicit WeightOffsets(const TensorType& w) : outputs_(w.shape[0]), in_panels_(w.format == panel_format()) {
    for (int64_t o = 0; o < w.shape[0]; ++o) out_.push_back(w.format.offset(w.shape, {o, 0, 0, 0}));
    for (int64_t i = 0; i < w.shape[1]; ++i) in_.push_back(w.format.offset(w.shape, {0, i, 0, 0}));
    for (int64_t tap = 0; tap < kKernelTaps; ++tap) tap_.push_back(w.format.offset(w.shape, {0, 0, tap / kTaps, tap % kTaps}));
  }
  /// The kernels of 16 output channels for one input channel, [tap][16], zero where there are none.
  void read(const float* weight, int64_t panel, int64_t channel, float* taps) const {
    each(panel, channel, [&](int64_t tap, int64_t offset, int64_t o, int64_t count) {
      std::memcpy(taps + tap * kPanel + o, weight + offset, static_cast<size_t>(count) * sizeof(float));
    });
    const int64_t there = std::min(kPanel, outputs_ - panel * kPanel);
    for (int64_t tap = 0; !in_panels_ && tap < kKernelTaps; ++tap) std::fill(taps + tap * kPanel + there, taps + (tap + 1) * kPanel, 0.0f);
  }
  /// Padding of the format is written with the zeros that `taps` hold there.
  void write(const float* taps, int64_t panel, int64_t channel, float* weight) const {
    each(panel, channel, [&](int64_t tap, int64_t offset, int64_t o, int64_t count) {
      std::memcpy(weight + offset, taps + tap * kPanel + o, static_cast<size_t>(count) * sizeof(float));
    });
  }

 private:
  template <class Run>
  void each(int64_t panel, int64_t channel, Run run) const {
    const int64_t first = panel * kPanel, there = std::min(kPanel, outputs_ - first);
    for (int64_t tap = 0; tap < kKernelTaps; ++tap) {
      const int64_t offset = in_[static_cast<size_t>(channel)] + tap_[static_cast<size_t>(tap)];
      if (in_panels_) {
        run(tap, offset + out_[static_cast<size_t>(first)], int64_t{0}, kPanel);
      } else {
        for (int64_t o = 0; o < there; ++o) run(tap, offset + out_[static_cast<size_t>(first + o)], o, int64_t{1});
      }
    }
  }
  int64_t outputs_;
  bool in_panels_;
  std::vector<int64_t> out_, in_, tap_;
};

/// A block of 16 x 16 kernels at a time: transformed into [input channel][position][16 output channels], then moved to where it belongs position by
/// position, so that whole lines are written.
class TransformWeights : public PreparedKernel {
 public:
  explicit TransformWeights(const KernelQuery& q) : outputs_(q.in(0).shape[0]), channels_(q.in(0).shape[1]), backward_(q.attrs<WinogradWeightsAttrs>().backward), offsets_(q.in(0)) {}
  void run(const KernelArgs& args) const override {
    const int64_t across = (channels_ + kPanel - 1) / kPanel;
    parallel_for((outputs_ + kPanel - 1) / kPanel * across, 1, [&](int64_t begin, int64_t end) {
      std::array<float, kPositions * kPanel * kPanel> block;
      for (int64_t task = begin; task < end; ++task) move(args, task / across, task % across * kPanel, block.data());
    });
  }

 private:
  void move(const KernelArgs& args, int64_t panel, int64_t first, float* block) const {
    const int64_t count = std::min(kPanel, channels_ - first);
    for (int64_t i = 0; i < count; ++i) {
      float taps[kKernelTaps * kPanel];
      offsets_.read(args.in<float>(0), panel, first + i, taps);
      if (backward_) {
        for (int64_t tap = 0; tap < kKernelTaps / 2; ++tap) std::swap_ranges(taps + tap * kPanel, taps + (tap + 1) * kPanel, taps + (kKernelTaps - 1 - tap) * kPanel);
      }
      HWY_DYNAMIC_DISPATCH(transform_kernels)(taps, block + i * kPanel, kPanel * kPanel);
    }
    auto* out = args.out<float>(0);
    if (!backward_) {
      const int64_t position = padded(outputs_) * channels_;
      for (int64_t p = 0; p < kPositions; ++p) {
        std::memcpy(out + p * position + (panel * channels_ + first) * kPanel, block + p * kPanel * kPanel, static_cast<size_t>(count * kPanel) * sizeof(float));
      }
      return;
    }
    // Panels of input channels over the depth of output channels.
    const int64_t position = padded(channels_) * outputs_, there = std::min(kPanel, outputs_ - panel * kPanel);
    for (int64_t p = 0; p < kPositions; ++p) {
      const float* from = block + p * kPanel * kPanel;
      float* to = out + p * position + (first * outputs_) + panel * kPanel * kPanel;
      for (int64_t o = 0; o < there; ++o) {
        for (int64_t i = 0; i < kPanel; ++i) to[o * kPanel + i] = i < count ? from[i * kPanel + o] : 0;
      }
    }
  }
  int64_t outputs_, channels_;
  bool backward_;
  WeightOffsets offsets_;
};

Support supports_transform(const KernelQuery& q) {
  const TensorType& w = q.in(0);
  if (w.dtype != DType::kF32) return Support::no(cat("dtype ", w.dtype));
  if (w.elements() == 0) return Support::no("empty array");
  if (!has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  return Support::yes();
}

constexpr int64_t kOwnSums = 1 << 20;              // bytes of sums that a thread keeps for itself, at most
constexpr int64_t kOwnBytes = 768 << 10, kSharedBytes = 4 << 20;  // of a round's transformed tiles: in a core's cache, in the one that all share
constexpr int64_t kMostRows = 192;                 // of a round: more leave the first-level cache

/// Rounds of tiles are transformed and multiplied. With few channels each thread takes a share of the tiles and has sums of its own, which are added up at the
/// end; with many all threads transform a round, then share out positions and panels.
class BackwardWeights : public PreparedKernel {
 public:
  explicit BackwardWeights(const KernelQuery& q)
      : tiling_(q.in(0).shape, q.in(1).shape, pair(q.attrs<Conv2dBackwardWeightsAttrs>().padding)),
        offsets_(q.out(0)),
        bytes_to_clear_(q.out(0).bytes() > q.out(0).elements() * 4 ? q.out(0).bytes() : 0),
        threads_(q.threads),
        image_row_(odd_lines(tiling_.channels)),
        gradient_row_(odd_lines(tiling_.outputs)),
        sum_position_(odd_lines(tiling_.channels * padded(tiling_.outputs))) {
    shares_ = 4 * kPositions * sum_position_ <= kOwnSums ? std::min(threads_, tiling_.count()) : 1;
    const int64_t row_bytes = 4 * kPositions * (image_row_ + gradient_row_), share = (tiling_.count() + shares_ - 1) / shares_;
    rows_ = std::min(share, shares_ > 1 ? std::clamp<int64_t>(kOwnBytes / row_bytes, 24, kMostRows) : std::clamp<int64_t>(kSharedBytes / row_bytes, 96, kMostRows));
    image_position_ = odd_lines(rows_ * image_row_);
    gradient_position_ = odd_lines(rows_ * gradient_row_);
  }
  int64_t scratch_bytes() const override { return 4 * (shares_ * room_floats() + threads_ * edge_floats()); }

  void run(const KernelArgs& args) const override {
    if (bytes_to_clear_ > 0) std::memset(args.outputs[0], 0, static_cast<size_t>(bytes_to_clear_));
    auto* rooms = static_cast<float*>(args.scratch);
    float* edges = rooms + shares_ * room_floats();
    const int64_t panels = padded(tiling_.outputs) / kPanel, tiles = tiling_.count();
    if (shares_ > 1) {
      parallel_for(shares_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t share = begin; share < end; ++share) {
          float *room = rooms + share * room_floats(), *edge = edges + share * edge_floats();
          const int64_t from = tiles * share / shares_, to = tiles * (share + 1) / shares_;
          for (int64_t first = from; first < to; first += rows_) {
            const int64_t rows = std::min(rows_, to - first);
            transform(args, first, 0, rows, room, edge);
            multiply(rows, first == from, 0, kPositions * panels, room);
          }
        }
      });
    } else {
      for (int64_t first = 0; first < tiles; first += rows_) {
        const int64_t rows = std::min(rows_, tiles - first);
        parallel_for(threads_, 1, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) transform(args, first, rows * t / threads_, rows * (t + 1) / threads_, rooms, edges + t * edge_floats());
        });
        parallel_for(kPositions * panels, 1, [&](int64_t begin, int64_t end) { multiply(rows, first == 0, begin, end, rooms); });
      }
    }
    parallel_for(panels * tiling_.channels, 8, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) finish(sums_of(rooms), task / tiling_.channels, task % tiling_.channels, args.out<float>(0));
    });
  }

 private:
  int64_t edge_floats() const { return kPositions * std::max(padded(tiling_.channels), padded(tiling_.outputs)); }
  /// Transformed images, transformed gradients, sums.
  int64_t room_floats() const { return kPositions * (image_position_ + gradient_position_ + sum_position_); }
  float* sums_of(float* room) const { return room + kPositions * (image_position_ + gradient_position_); }

  /// Rows [begin, end) of the round whose first tile is `first`.
  void transform(const KernelArgs& args, int64_t first, int64_t begin, int64_t end, float* room, float* edge) const {
    for (int64_t row = begin; row < end; ++row) {
      transform_image(tiling_, args.in<float>(0), first + row, edge, room + row * image_row_, image_position_);
      transform_gradient(tiling_, args.in<float>(1), first + row, edge, room + kPositions * image_position_ + row * gradient_row_, gradient_position_);
    }
  }
  /// Tasks are panels of positions.
  void multiply(int64_t rows, bool is_first, int64_t begin, int64_t end, float* room) const {
    const int64_t panels = padded(tiling_.outputs) / kPanel;
    for (int64_t task = begin; task < end;) {
      const int64_t position = task / panels, column = task % panels * kPanel, count = std::min(panels - task % panels, end - task);
      HWY_DYNAMIC_DISPATCH(add_products)({room + position * image_position_, room + kPositions * image_position_ + position * gradient_position_ + column,
                                          sums_of(room) + position * sum_position_ + column, image_row_, gradient_row_, padded(tiling_.outputs), rows, tiling_.channels, count, is_first});
      task += count;
    }
  }
  void finish(const float* sums, int64_t panel, int64_t channel, float* out) const {
    const int64_t at = channel * padded(tiling_.outputs) + panel * kPanel;
    float taps[kKernelTaps * kPanel], total[kPositions * kPanel];
    if (shares_ == 1) {
      HWY_DYNAMIC_DISPATCH(transform_kernel_gradient)(sums + at, sum_position_, taps);
    } else {
      for (int64_t p = 0; p < kPositions; ++p) {
        const float* from = sums + p * sum_position_ + at;
        for (int64_t o = 0; o < kPanel; ++o) total[p * kPanel + o] = from[o];
        for (int64_t share = 1; share < shares_; ++share) {
          for (int64_t o = 0; o < kPanel; ++o) total[p * kPanel + o] += from[share * room_floats() + o];
        }
      }
      HWY_DYNAMIC_DISPATCH(transform_kernel_gradient)(total, kPanel, taps);
    }
    offsets_.write(taps, panel, channel, out);
  }

  Tiling tiling_;
  WeightOffsets offsets_;
  int64_t bytes_to_clear_;  // of a format with padding
  int64_t threads_, image_row_, gradient_row_, sum_position_, image_position_ = 0, gradient_position_ = 0;
  int64_t shares_ = 1, rows_ = 0;
};

Support supports_gradient(const KernelQuery& q) {
  const TensorType &x = q.in(0), &grad = q.in(1), &dw = q.out(0);
  for (const TensorType* type : {&x, &grad, &dw}) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  if (!a.winograd || !fits(a, dw.shape)) return Support::no("not to be computed by Winograd's way");
  if (!x.format.is_channels_last() || !grad.format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (!has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  return Support::yes();
}

}  // namespace

const Kernel& winograd_weights_kernel() {
  static const Kernel kernel{"winograd_weights", "cpu", supports_transform,
                             [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<TransformWeights>(q); },
                             [](const KernelQuery&, int) { return panel_format(); }};
  return kernel;
}

const Kernel& winograd_backward_weights_kernel() {
  static const Kernel kernel{"conv2d_backward_weights", "cpu_winograd", supports_gradient,
                             [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<BackwardWeights>(q); }};
  return kernel;
}

}  // namespace galley

#endif  // HWY_ONCE
