// winograd_4x4, weights: 3 x 3 kernels transformed into panels for multiply_packed, and the weight gradient, which is the adjoint of the
// forward pass: images and the gradients of results are transformed, multiplied over the tiles at each position, and the sums are
// transformed back (Lavin and Gray 2016).
//
// Transformed operands are [position][tile][channel]. A register tile of 6 inputs by 16 outputs (12 by 32 with AVX-512) is accumulated over
// 128 tiles of the image, which the first-level cache holds. 36 products for each tile, input and output channel; FMA bounds them, and the
// transforms take up to 40 % with 64 channels.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/winograd_weights.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_WINOGRAD_WEIGHTS_ONCE
#define GALLEY_WINOGRAD_WEIGHTS_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/winograd.h"
#include "libcore/base/parallel.h"

namespace galley::winograd {

constexpr int64_t kPanel = 16;

/// sums[i][o] += over k of a[k][i] b[k][o] for `rows` i and the 16 o of each panel.
struct TileProduct {
  const float* a;
  const float* b;
  float* sums;
  int64_t a_step, b_step, sum_step;  // floats from one k (sums: i) to the next
  int64_t depth, rows, panels;
  bool first;                    // sums are set, not added to
  const float *next_a, *next_b;  // of the next product: prefetched
};

}  // namespace galley::winograd

#endif

#include "libcore/backends/cpu/unrolled-inl.h"
#include "libcore/backends/cpu/winograd_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace galley::winograd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
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
constexpr int kPanels = kWide == 16 ? 2 : 1;  // at once: with one, each FMA would load its own factor

using galley::HWY_NAMESPACE::each;

/// Prefetches of a tile, a cache line at each k: the first-level cache holds its own factors; those of the next tile come from a shared
/// cache.
struct Prefetch {
  const float* at;
  int64_t step;
};
using Prefetches = std::array<Prefetch, 2>;  // as many as a tile has panels are used

template <int kCount, int kVectors>
HWY_INLINE void add_rows(const TileProduct& p, int64_t row, int64_t column, Prefetches prefetches) {
  const Floats d;
  const auto place = [&](int i) GALLEY_LOOP { return p.sums + (row + i / kVectors) * p.sum_step + column + i % kVectors * kWide; };
  if (!p.first) each<kCount * kVectors>([&](auto i) GALLEY_LOOP { __builtin_prefetch(place(i), 1, 3); });
  V sum[kCount * kVectors];
  each<kCount * kVectors>([&](auto i) GALLEY_LOOP { sum[i] = hn::Zero(d); });
  const float* HWY_RESTRICT a = p.a + row;
  const float* HWY_RESTRICT b = p.b + column;
  const int64_t a_step = p.a_step, b_step = p.b_step;
  for (int64_t k = p.depth; k > 0; --k, a += a_step, b += b_step) {
    each<kPanels>([&](auto i) GALLEY_LOOP {
      __builtin_prefetch(prefetches[i].at, 0, 3);
      prefetches[i].at += prefetches[i].step;
    });
    V right[kVectors];
    each<kVectors>([&](auto j) GALLEY_LOOP { right[j] = hn::LoadU(d, b + j * kWide); });
    each<kCount>([&](auto i) GALLEY_LOOP {
      const V left = hn::Set(d, a[i]);
      each<kVectors>([&](auto j) GALLEY_LOOP { sum[i * kVectors + j] = hn::MulAdd(left, right[j], sum[i * kVectors + j]); });
    });
  }
  if (!p.first) each<kCount * kVectors>([&](auto i) GALLEY_LOOP { sum[i] = hn::Add(hn::LoadU(d, place(i)), sum[i]); });
  each<kCount * kVectors>([&](auto i) GALLEY_LOOP { hn::StoreU(sum[i], d, place(i)); });
}

template <int kVectors, int kCount = static_cast<int>(kRows)>
void add_some_rows(const TileProduct& p, int64_t row, int64_t column, const Prefetches& prefetches) {
  if constexpr (kCount > 1) {
    if (p.rows - row < kCount) return add_some_rows<kVectors, kCount - 1>(p, row, column, prefetches);
  }
  add_rows<kCount, kVectors>(p, row, column, prefetches);
}

/// `count` panels, one or two, from `panel` on; both use the values of a row, which come from a shared cache.
void add_panels(const TileProduct& p, int64_t panel, int64_t count) {
  const bool is_last = panel + count == p.panels;
  const float *next_a = is_last ? p.next_a : p.a, *next_b = is_last ? p.next_b : p.b + (panel + count) * kPanel;
  for (int64_t row = 0; row < p.rows; row += kRows) {
    const Prefetch a{row + kRows < p.rows ? p.a + row + 2 * kRows - 1 : next_a, p.a_step},
        b{next_b + row / kRows % count * kPanel, p.b_step};
    for (int64_t i = 0; i < count; i += kPanels) {
      const Prefetches prefetches = i + kPanels < count ? Prefetches{b, a} : Prefetches{a, b};
      i + kPanels <= count ? add_some_rows<kPanels * kParts>(p, row, (panel + i) * kPanel, prefetches)
                           : add_some_rows<kParts>(p, row, (panel + i) * kPanel, prefetches);
    }
  }
}

void add_products(const TileProduct& p) {
  for (int64_t panel = 0; panel < p.panels; panel += 2) add_panels(p, panel, std::min<int64_t>(2, p.panels - panel));
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
  /// The kernels of 16 output channels for one input channel, [tap][16]; missing channels are zero.
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

/// Transforms 16 x 16 kernels at a time into [input channel][position][16 output channels], then copies them to their places position by
/// position, so that whole cache lines are written.
class TransformWeights : public PreparedKernel {
 public:
  explicit TransformWeights(const KernelQuery& q)
      : outputs_(q.in(0).shape[0]), channels_(q.in(0).shape[1]), backward_(q.attrs<WinogradWeightsAttrs>().backward), offsets_(q.in(0)) {}
  void run(Stream&, const KernelArgs& args) const override {
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
        for (int64_t tap = 0; tap < kKernelTaps / 2; ++tap)
          std::swap_ranges(taps + tap * kPanel, taps + (tap + 1) * kPanel, taps + (kKernelTaps - 1 - tap) * kPanel);
      }
      HWY_DYNAMIC_DISPATCH(transform_kernels)(taps, block + i * kPanel, kPanel * kPanel);
    }
    auto* out = args.out<float>(0);
    if (!backward_) {
      const int64_t position = padded(outputs_) * channels_;
      for (int64_t p = 0; p < kPositions; ++p) {
        std::memcpy(out + p * position + (panel * channels_ + first) * kPanel, block + p * kPanel * kPanel,
                    static_cast<size_t>(count * kPanel) * sizeof(float));
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

constexpr int64_t kOwnSums = conv_threshold::kWinogradOwnSumBytes.value;
constexpr int64_t kOwnBytes = conv_threshold::kWinogradOwnBytes.value, kSharedBytes = conv_threshold::kWinogradSharedBytes.value;
constexpr int64_t kWholeBytes = conv_threshold::kWinogradOneRoundBytes.value, kMostRows = conv_threshold::kWinogradRoundRows.value;
constexpr int64_t kDepth = conv_threshold::kWinogradDepth.value;
constexpr int64_t kInputs = conv_threshold::kWinogradInputs.value, kOutputs = conv_threshold::kWinogradOutputs.value;

/// Tiles are transformed and multiplied in rounds. With few channels each thread takes a part of the tiles and keeps its own sums, which
/// are added at the end. With many channels all threads transform a round, then divide the blocks of input and output channels; after the
/// last round each block of sums is transformed back at once, and with a single round it never leaves the core's cache.
class BackwardWeights : public PreparedKernel {
 public:
  explicit BackwardWeights(const KernelQuery& q)
      : tiling_(q.in(0).shape, q.in(1).shape, pair(q.attrs<Conv2dBackwardWeightsAttrs>().padding)),
        offsets_(q.out(0)),
        bytes_to_clear_(q.out(0).bytes() > q.out(0).elements() * 4 ? q.out(0).bytes() : 0),
        threads_(q.threads),
        image_row_(odd_lines(tiling_.channels)),
        gradient_row_(odd_lines(tiling_.outputs)),
        block_{tiling_.channels, padded(tiling_.outputs)} {
    const int64_t row_bytes = 4 * kPositions * (image_row_ + gradient_row_);
    if (4 * kPositions * block_.inputs * block_.outputs <= kOwnSums) {
      parts_ = std::min(threads_, tiling_.count());
      const int64_t part = (tiling_.count() + parts_ - 1) / parts_;
      rows_ = std::min(part, std::clamp<int64_t>(kOwnBytes / row_bytes, 24, kMostRows));
    } else {
      block_ = {std::min(kInputs, block_.inputs), std::min(kOutputs, block_.outputs)};
      rows_ = tiling_.count() * row_bytes <= kWholeBytes
                  ? tiling_.count()
                  : std::min(tiling_.count(), std::clamp<int64_t>(kSharedBytes / row_bytes, 96, kMostRows));
    }
    image_position_ = odd_lines(rows_ * image_row_);
    gradient_position_ = odd_lines(rows_ * gradient_row_);
    sum_position_ = odd_lines(block_.inputs * block_.outputs);
  }
  int64_t scratch_bytes() const override {
    return 4 * (workspaces() * workspace_floats() + sum_workspaces() * sum_floats() + threads_ * edge_floats());
  }

  void run(Stream&, const KernelArgs& args) const override {
    if (bytes_to_clear_ > 0) std::memset(args.outputs[0], 0, static_cast<size_t>(bytes_to_clear_));
    auto* workspace = static_cast<float*>(args.scratch);
    float *sums_at = workspace + workspaces() * workspace_floats(), *edges = sums_at + sum_workspaces() * sum_floats();
    const int64_t tiles = tiling_.count();
    if (parts_ > 0) {
      parallel_for(parts_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t from = tiles * part / parts_, to = tiles * (part + 1) / parts_;
          for (int64_t first = from; first < to; first += rows_) {
            const int64_t rows = std::min(rows_, to - first);
            transform(args, first, 0, rows, workspace + part * workspace_floats(), edges + part * edge_floats());
            multiply(rows, first == from, block(0), workspace + part * workspace_floats(), sums_at + part * sum_floats());
          }
        }
      });
      parallel_for(tiling_.channels, 4, [&](int64_t begin, int64_t end) { finish(sums_at, block(0), begin, end, args.out<float>(0)); });
      return;
    }
    for (int64_t first = 0; first < tiles; first += rows_) {
      const int64_t rows = std::min(rows_, tiles - first);
      parallel_for(threads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          transform(args, first, rows * t / threads_, rows * (t + 1) / threads_, workspace, edges + t * edge_floats());
      });
      parallel_tasks(blocks(), threads_, [&](int64_t task, int64_t slot) {
        const Block its = block(task);
        float* sums = sums_at + (is_one_round() ? slot : task) * sum_floats();
        multiply(rows, first == 0, its, workspace, sums);
        if (first + rows == tiles) finish(sums, its, 0, its.inputs, args.out<float>(0));
      });
    }
  }

 private:
  /// Input and (padded) output channels from some on.
  struct Block {
    int64_t inputs, outputs, first_input = 0, first_output = 0;
  };
  int64_t blocks_of_inputs() const { return (tiling_.channels + block_.inputs - 1) / block_.inputs; }
  int64_t blocks() const { return blocks_of_inputs() * ((padded(tiling_.outputs) + block_.outputs - 1) / block_.outputs); }
  Block block(int64_t task) const {
    const int64_t input = task % blocks_of_inputs() * block_.inputs, output = task / blocks_of_inputs() * block_.outputs;
    return {std::min(block_.inputs, tiling_.channels - input), std::min(block_.outputs, padded(tiling_.outputs) - output), input, output};
  }
  bool is_one_round() const { return parts_ == 0 && rows_ == tiling_.count(); }

  int64_t workspaces() const { return std::max<int64_t>(1, parts_); }
  int64_t sum_workspaces() const { return parts_ > 0 ? parts_ : is_one_round() ? threads_ : blocks(); }
  int64_t edge_floats() const { return kPositions * std::max(padded(tiling_.channels), padded(tiling_.outputs)); }
  /// Transformed images, transformed gradients.
  int64_t workspace_floats() const { return kPositions * (image_position_ + gradient_position_); }
  int64_t sum_floats() const { return kPositions * sum_position_; }

  /// Rows [begin, end) of the round whose first tile is `first`.
  void transform(const KernelArgs& args, int64_t first, int64_t begin, int64_t end, float* workspace, float* edge) const {
    for (int64_t row = begin; row < end; ++row) {
      transform_image(tiling_, args.in<float>(0), first + row, edge, workspace + row * image_row_, image_position_);
      transform_gradient(tiling_, args.in<float>(1), first + row, edge, workspace + kPositions * image_position_ + row * gradient_row_,
                         gradient_position_);
    }
  }
  void multiply(int64_t rows, bool is_first, const Block& b, const float* workspace, float* sums) const {
    const int64_t parts = (rows + kDepth - 1) / kDepth, tasks = kPositions * parts;
    const float *images = workspace + b.first_input, *gradients = workspace + kPositions * image_position_ + b.first_output;
    const auto row_of = [&](int64_t task) { return rows * (task % parts) / parts; };
    const auto image = [&](int64_t task) { return images + task / parts * image_position_ + row_of(task) * image_row_; };
    const auto gradient = [&](int64_t task) { return gradients + task / parts * gradient_position_ + row_of(task) * gradient_row_; };
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t part = task % parts, depth = rows * (part + 1) / parts - row_of(task), next = std::min(task + 1, tasks - 1);
      HWY_DYNAMIC_DISPATCH(add_products)({image(task), gradient(task), sums + task / parts * sum_position_, image_row_, gradient_row_,
                                          block_.outputs, depth, b.inputs, b.outputs / kPanel, is_first && part == 0, image(next),
                                          gradient(next)});
    }
  }
  /// Adds the sums of all parts and transforms them back, for the block's input channels [begin, end).
  void finish(const float* sums, const Block& b, int64_t begin, int64_t end, float* out) const {
    for (int64_t panel = 0; panel < b.outputs / kPanel; ++panel) {
      for (int64_t i = begin; i < end; ++i) {
        const float* from = sums + i * block_.outputs + panel * kPanel;
        float taps[kKernelTaps * kPanel], total[kPositions * kPanel];
        if (parts_ <= 1) {
          HWY_DYNAMIC_DISPATCH(transform_kernel_gradient)(from, sum_position_, taps);
        } else {
          for (int64_t p = 0; p < kPositions; ++p, from += sum_position_) {
            for (int64_t o = 0; o < kPanel; ++o) total[p * kPanel + o] = from[o];
            for (int64_t part = 1; part < parts_; ++part) {
              for (int64_t o = 0; o < kPanel; ++o) total[p * kPanel + o] += from[part * sum_floats() + o];
            }
          }
          HWY_DYNAMIC_DISPATCH(transform_kernel_gradient)(total, kPanel, taps);
        }
        offsets_.write(taps, b.first_output / kPanel + panel, b.first_input + i, out);
      }
    }
  }

  Tiling tiling_;
  WeightOffsets offsets_;
  int64_t bytes_to_clear_;  // of a format with padding
  int64_t threads_, image_row_, gradient_row_;
  Block block_;  // the first
  int64_t image_position_ = 0, gradient_position_ = 0, sum_position_ = 0;
  int64_t parts_ = 0, rows_ = 0;  // 0: the threads divide blocks of channels
};

Support supports_gradient(const KernelQuery& q) {
  const TensorType &x = q.in(0), &grad = q.in(1), &dw = q.out(0);
  for (const TensorType* type : {&x, &grad, &dw}) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (!x.format.is_channels_last() || !grad.format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (!has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kWinogradTransform{supports_transform, prepare_as<TransformWeights>,
                                              [](const KernelQuery&, int) { return panel_format(); }};
const Algorithm algorithm::kWinogradWeights{supports_gradient, prepare_as<BackwardWeights>};

}  // namespace galley

#endif  // HWY_ONCE
