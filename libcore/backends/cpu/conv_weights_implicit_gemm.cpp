// implicit_gemm: the weight gradient of dense convolutions in f32 on channels_last images, as one matrix product over the pixels for each
// tap of the kernel. No image is unrolled (Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014).
//
// Both operands are rows of channels, so packing needs no transpose: panels [panel][pixel][16 outputs] of the gradient, which are loaded as
// vectors, and [panel][pixel][6 inputs] of x, which are broadcast (32 and 12 with AVX-512). Lines of x are packed once with their padding,
// and each tap reads them at another offset. A register tile of one panel by one panel is accumulated over a block of some hundred pixels.
// 2 pixels inputs outputs taps operations; FMA bounds it, packing is about an eighth of the time. Bits depend on the instruction set and
// the logical thread count only.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/conv_weights_implicit_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_CONV_WEIGHTS_IMPLICIT_GEMM_ONCE
#define GALLEY_CONV_WEIGHTS_IMPLICIT_GEMM_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley::implicit_gemm {

/// Channels of a panel, and pixels of a block: with fewer pixels, the sums are read and written more often.
struct Narrow {
  static constexpr int64_t kOut = 16, kIn = 6, kPixels = conv_threshold::kImplicitGemmPixels.value;
};
struct Wide {
  static constexpr int64_t kOut = 32, kIn = 12, kPixels = conv_threshold::kImplicitGemmPixelsAvx512.value;
};

/// Packed lines of pixels: `grad` [lines][width][kOut]; output line l reads packed input line rows[l] (and those below it for the other
/// kernel rows), of `in_width` columns of kIn.
struct Lines {
  const float* grad;
  const float* x;
  const int64_t* rows;
  int64_t lines, width, in_width, stride_w;
};

}  // namespace galley::implicit_gemm

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::implicit_gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if GALLEY_WIDE_TARGET

/// tile[input][output] += sum over pixels of grad x, for the tap at (row, column) of the kernel.
template <class Panels>
void add_tile(const Lines& at, int64_t row, int64_t column, float* HWY_RESTRICT tile) {
  constexpr int64_t kOut = Panels::kOut, kIn = Panels::kIn;
  const hn::CappedTag<float, Panels::kOut / 2> d;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d)), kParts = static_cast<int>(kOut) / kWide;
  using galley::HWY_NAMESPACE::each;
  constexpr int kSums = static_cast<int>(kIn) * kParts;
  // The sums may be in a cache that all cores share: prefetch them during the products.
  each<kSums>([&](auto i) GALLEY_LOOP { __builtin_prefetch(tile + i * kWide, 1, 3); });
  hn::Vec<decltype(d)> sum[kSums];
  each<kSums>([&](auto i) GALLEY_LOOP { sum[i] = hn::Zero(d); });
  for (int64_t l = 0; l < at.lines; ++l) {
    const float* HWY_RESTRICT x = at.x + ((at.rows[l] + row) * at.in_width + column) * kIn;
    const float* HWY_RESTRICT grad = at.grad + l * at.width * kOut;
    for (int64_t w = 0; w < at.width; ++w, x += at.stride_w * kIn, grad += kOut) {
      hn::Vec<decltype(d)> g[kParts];
      each<kParts>([&](auto p) GALLEY_LOOP { g[p] = hn::LoadU(d, grad + p * kWide); });
      each<kIn>([&](auto i) GALLEY_LOOP {
        const auto value = hn::Set(d, x[i]);
        each<kParts>([&](auto p) GALLEY_LOOP { sum[i * kParts + p] = hn::MulAdd(value, g[p], sum[i * kParts + p]); });
      });
    }
  }
  each<kSums>([&](auto i) GALLEY_LOOP { hn::StoreU(hn::Add(hn::LoadU(d, tile + i * kWide), sum[i]), d, tile + i * kWide); });
}

void add_narrow(const Lines& at, int64_t row, int64_t column, float* tile) { add_tile<Narrow>(at, row, column, tile); }
void add_wide(const Lines& at, int64_t row, int64_t column, float* tile) { add_tile<Wide>(at, row, column, tile); }

#else  // never called: supports says no

void add_narrow(const Lines&, int64_t, int64_t, float*) {}
void add_wide(const Lines&, int64_t, int64_t, float*) {}

#endif

/// Are there 32 registers of 512 bits?
bool takes_wide() { return HWY_TARGET <= HWY_AVX3; }

}  // namespace HWY_NAMESPACE
}  // namespace galley::implicit_gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace implicit_gemm {
HWY_EXPORT(add_narrow);
HWY_EXPORT(add_wide);
HWY_EXPORT(takes_wide);
}  // namespace implicit_gemm

namespace {

using implicit_gemm::Narrow;
using implicit_gemm::Wide;

constexpr int64_t kChannels = conv_threshold::kImplicitGemmInputs.value;  // of the input, packed at a time
constexpr int64_t kOutputs = conv_threshold::kImplicitGemmOutputs.value;  // of the output, packed at a time

int64_t panels(int64_t channels, int64_t size) { return (channels + size - 1) / size; }
int64_t aligned(int64_t floats) { return (floats + 15) / 16 * 16; }

/// `count` pixels of `channels` floats (rows of `stride`) as panels [panel][pixel][kSize], panels `panel_stride` apart; the last one is
/// filled with zeros. Eight pixels at a time: whole cache lines are read once.
template <int64_t kSize>
void pack(const float* from, int64_t count, int64_t stride, int64_t channels, float* to, int64_t panel_stride) {
  for (int64_t first = 0; first < count; first += 8) {
    const int64_t pixels = std::min<int64_t>(8, count - first);
    for (int64_t c = 0; c < channels; c += kSize) {
      const float* source = from + first * stride + c;
      float* target = to + c / kSize * panel_stride + first * kSize;
      if (c + kSize <= channels) {
        for (int64_t p = 0; p < pixels; ++p) std::memcpy(target + p * kSize, source + p * stride, sizeof(float) * kSize);
      } else {
        for (int64_t p = 0; p < pixels; ++p) {
          for (int64_t i = 0; i < kSize; ++i) target[p * kSize + i] = c + i < channels ? source[p * stride + i] : 0;
        }
      }
    }
  }
}

void add_tile(Narrow, const implicit_gemm::Lines& at, int64_t row, int64_t column, float* tile) {
  HWY_DYNAMIC_DISPATCH(implicit_gemm::add_narrow)(at, row, column, tile);
}
void add_tile(Wide, const implicit_gemm::Lines& at, int64_t row, int64_t column, float* tile) {
  HWY_DYNAMIC_DISPATCH(implicit_gemm::add_wide)(at, row, column, tile);
}

template <class Panels>
class ConvWeights : public PreparedKernel {
  static constexpr int64_t kOut = Panels::kOut, kIn = Panels::kIn, kPixels = Panels::kPixels, kTile = kOut * kIn;
  static_assert(kChannels % kIn == 0 && kOutputs % kOut == 0);

 public:
  explicit ConvWeights(const KernelQuery& q) : x_(q.in(0).shape), y_(q.in(1).shape), w_(q.out(0)), offsets_(w_) {
    const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
    stride_ = pair(a.stride);
    padding_ = pair(a.padding);
    taps_ = w_.shape[2] * w_.shape[3];
    in_panels_ = panels(x_[1], kIn);
    out_panels_ = panels(y_[1], kOut);
    sums_ = out_panels_ * in_panels_ * taps_ * kTile;
    // Threads divide the pixels as long as their sums fit, then the output channels.
    for (int64_t parts = 1; parts <= q.threads; ++parts) {
      if (q.threads % parts == 0 && parts * sums_ * 4 <= conv_threshold::kWeightSumBytes.value && parts <= y_[0] * y_[2])
        pixel_parts_ = parts;
    }
    out_parts_ = std::min<int64_t>(q.threads / pixel_parts_, out_panels_);
    lines_ = std::max<int64_t>(1, kPixels / y_[3]);
    // A 1x1 kernel reads only the pixels that it needs, and lines follow each other without a gap.
    pointwise_ = taps_ == 1 && padding_[0] == 0 && padding_[1] == 0;
    in_width_ = pointwise_ ? y_[3] : std::max(x_[3] + 2 * padding_[1], (y_[3] - 1) * stride_[1] + w_.shape[3]);
    rows_ = pointwise_ ? lines_ : (lines_ - 1) * stride_[0] + (lines_ / y_[2] + 2) * w_.shape[2];
    grad_floats_ = aligned(lines_ * y_[3] * std::min(out_panels_ * kOut, kOutputs));
    x_floats_ = aligned(rows_ * in_width_ * std::min(in_panels_ * kIn, kChannels));
  }
  int64_t scratch_bytes() const override {
    return (pixel_parts_ * sums_ + pixel_parts_ * out_parts_ * (grad_floats_ + x_floats_ + 2 * aligned(lines_))) * 4;
  }

  void run(Stream&, const KernelArgs& args) const override {
    auto* sums = static_cast<float*>(args.scratch);
    float* workspaces = sums + pixel_parts_ * sums_;
    parallel_for(pixel_parts_ * out_parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t pixel_part = task / out_parts_, out_part = task % out_parts_;
        add(args, {pixel_part, out_panels_ * out_part / out_parts_, out_panels_ * (out_part + 1) / out_parts_}, sums + pixel_part * sums_,
            workspaces + task * (grad_floats_ + x_floats_ + 2 * aligned(lines_)));
      }
    });
    auto* out = args.out<float>(0);
    if (w_.bytes() > w_.shape.elements() * 4) std::memset(out, 0, static_cast<size_t>(w_.bytes()));  // a blocked format's padding
    parallel_for(out_panels_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) write(sums, panel, out);
    });
  }

 private:
  struct Part {
    int64_t pixels, first_panel, last_panel;
  };

  /// Clears and fills the sums [out panel][in panel][tap][tile] of a part.
  void add(const KernelArgs& args, const Part& part, float* sums, float* grad_workspace) const {
    float* x_workspace = grad_workspace + grad_floats_;
    auto* rows = reinterpret_cast<int64_t*>(x_workspace + x_floats_);
    std::fill(sums + part.first_panel * in_panels_ * taps_ * kTile, sums + part.last_panel * in_panels_ * taps_ * kTile, 0.0f);
    const int64_t total = y_[0] * y_[2], from = total * part.pixels / pixel_parts_, to = total * (part.pixels + 1) / pixel_parts_;
    for (int64_t out = part.first_panel; out < part.last_panel; out += kOutputs / kOut) {
      const int64_t last = std::min(part.last_panel, out + kOutputs / kOut);
      for (int64_t line = from; line < to; line += lines_) {
        const int64_t lines = std::min(lines_, to - line), pixels = lines * y_[3];
        pack<kOut>(args.in<float>(1) + line * y_[3] * y_[1] + out * kOut, pixels, y_[1], std::min(y_[1], last * kOut) - out * kOut,
                   grad_workspace, pixels * kOut);
        for (int64_t channel = 0; channel < x_[1]; channel += kChannels) {
          const int64_t channels = std::min(kChannels, x_[1] - channel), panel_stride = rows_ * in_width_ * kIn;
          pack_lines(args.in<float>(0) + channel, line, lines, channels, x_workspace, rows);
          for (int64_t o = out; o < last; ++o) {
            for (int64_t i = 0; i < panels(channels, kIn); ++i) {
              implicit_gemm::Lines at{
                  grad_workspace + (o - out) * pixels * kOut, x_workspace + i * panel_stride, rows, lines, y_[3], in_width_, stride_[1]};
              if (pointwise_) at.lines = at.stride_w = 1, at.width = pixels;
              float* tile = sums + ((o * in_panels_ + channel / kIn + i) * taps_) * kTile;
              for (int64_t tap = 0; tap < taps_; ++tap, tile += kTile) {
                add_tile(Panels(), at, tap / w_.shape[3], tap % w_.shape[3], tile);
              }
            }
          }
        }
      }
    }
  }

  /// The input lines that output lines [line, line + lines) read, counted over all images; rows[l]: the first of output line l.
  void pack_lines(const float* x, int64_t line, int64_t lines, int64_t channels, float* to, int64_t* rows) const {
    const int64_t panel_stride = rows_ * in_width_ * kIn, height = y_[2];
    if (pointwise_) {
      rows[0] = 0;
      for (int64_t l = 0; l < lines; ++l) {
        const float* from = x + ((line + l) / height * x_[2] + (line + l) % height * stride_[0]) * x_[3] * x_[1];
        pack<kIn>(from, y_[3], stride_[1] * x_[1], channels, to + l * in_width_ * kIn, panel_stride);
      }
      return;
    }
    int64_t packed = 0;
    for (int64_t l = 0; l < lines;) {
      const int64_t n = (line + l) / height, h = (line + l) % height, count = std::min(lines - l, height - h);
      for (int64_t i = 0; i < count; ++i) rows[l + i] = packed + i * stride_[0];
      for (int64_t r = 0; r < (count - 1) * stride_[0] + w_.shape[2]; ++r, ++packed) {
        float* target = to + packed * in_width_ * kIn;
        const int64_t row = h * stride_[0] - padding_[0] + r;
        const bool inside = row >= 0 && row < x_[2];
        for (int64_t c = 0; c < channels; c += kIn) {
          float* line_of_panel = target + c / kIn * panel_stride;
          if (!inside) {
            std::fill_n(line_of_panel, in_width_ * kIn, 0.0f);
          } else {
            std::fill_n(line_of_panel, padding_[1] * kIn, 0.0f);
            std::fill(line_of_panel + (padding_[1] + x_[3]) * kIn, line_of_panel + in_width_ * kIn, 0.0f);
          }
        }
        if (inside) pack<kIn>(x + (n * x_[2] + row) * x_[3] * x_[1], x_[3], x_[1], channels, target + padding_[1] * kIn, panel_stride);
      }
      l += count;
    }
  }

  /// Adds the pixel parts in their order and writes the sums in the weight's format.
  void write(const float* sums, int64_t panel, float* out) const {
    const int64_t outputs = std::min(kOut, y_[1] - panel * kOut);
    for (int64_t i = 0; i < x_[1]; ++i) {
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const float* tile = sums + ((panel * in_panels_ + i / kIn) * taps_ + tap) * kTile + i % kIn * kOut;
        float total[kOut];
        std::memcpy(total, tile, sizeof total);
        for (int64_t part = 1; part < pixel_parts_; ++part) {
          for (int64_t o = 0; o < kOut; ++o) total[o] += tile[part * sums_ + o];
        }
        float* to = out + offsets_.in[static_cast<size_t>(i)] + offsets_.tap[static_cast<size_t>(tap)];
        for (int64_t o = 0; o < outputs; ++o) to[offsets_.out[static_cast<size_t>(panel * kOut + o)]] = total[o];
      }
    }
  }

  Shape x_, y_;
  TensorType w_;
  WeightTerms offsets_;
  std::array<int64_t, 2> stride_{}, padding_{};
  bool pointwise_ = false;
  int64_t taps_ = 0, in_panels_ = 0, out_panels_ = 0, sums_ = 0, pixel_parts_ = 1, out_parts_ = 1;
  int64_t lines_ = 0, in_width_ = 0, rows_ = 0, grad_floats_ = 0, x_floats_ = 0;
};

/// Channels that pay for the packing: a kernel of several taps uses what is packed more often.
int64_t least_channels(const Shape& w, bool wide) {
  using namespace conv_threshold;
  return (w[2] * w[3] == 1 ? kImplicitGemmChannels1x1 : wide ? kImplicitGemmChannelsAvx512 : kImplicitGemmChannels).value;
}

template <class P>
bool fills_panels(const Shape& w) {
  constexpr int64_t kPadding = conv_threshold::kImplicitGemmPadding.value;
  return panels(w[0], P::kOut) * P::kOut * panels(w[1], P::kIn) * P::kIn * kPadding <= w[0] * w[1] * (kPadding + 1);
}

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType &x = q.in(0), &grad = q.in(1);
  if (const Support dense = is_dense_weight_gradient(q); !dense) return dense;
  const auto dilation = pair(a.dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  const Shape& w = q.out(0).shape;
  const bool wide = HWY_DYNAMIC_DISPATCH(implicit_gemm::takes_wide)();
  if (!(wide ? fills_panels<Wide>(w) : fills_panels<Narrow>(w)))
    return Support::no(cat("channels ", x.shape[1], " and ", grad.shape[1], " fill no panels"));
  if (std::min(x.shape[1], grad.shape[1]) < least_channels(w, wide))
    return Support::no(cat("channels ", x.shape[1], " and ", grad.shape[1], ": too few to pack"));
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("vectors of 8 floats are missing");
  // With 512 bits oneDNN's kernels are as fast for other windows.
  if (wide && (w[2] * w[3] == 1 || pair(a.stride) == std::array<int64_t, 2>{1, 1}))
    return Support::no("a kernel of one pixel, or a stride of 1");
  // The sums of more would leave the caches between blocks of pixels.
  if (wide && w.elements() * 4 > conv_threshold::kImplicitGemmWeightBytes.value)
    return Support::no(cat("a weight of ", w.elements() * 4 >> 20, " MiB"));
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (HWY_DYNAMIC_DISPATCH(implicit_gemm::takes_wide)()) return std::make_unique<ConvWeights<Wide>>(q);
  return std::make_unique<ConvWeights<Narrow>>(q);
}

}  // namespace

Support is_dense_weight_gradient(const KernelQuery& q, DType dtype) {
  const TensorType &x = q.in(0), &grad = q.in(1);
  if (q.attrs<Conv2dBackwardWeightsAttrs>().groups != 1) return Support::no("groups");
  if (x.dtype != dtype || grad.dtype != dtype || q.out(0).dtype != dtype) return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_channels_last() || !grad.format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0 || grad.elements() == 0) return Support::no("empty array");
  return Support::yes();
}

const Algorithm algorithm::kConvWeightsImplicitGemm{supports, prepare};

}  // namespace galley

#endif  // HWY_ONCE
