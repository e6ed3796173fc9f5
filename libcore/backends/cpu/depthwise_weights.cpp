// depthwise: the weight gradient of depthwise convolutions in f32 or bf16 on channels_last images. W[c][tap] = sum over output pixels p of
// grad[p][c] x[p stride + tap][c].
//
// Images are read where they are, 16 channels (a chunk) at a time, or 32 where 512-bit vectors would wait for 3 or 5 sums of their own. The
// sums of a kernel row's taps stay in registers over a band of output lines; bands are added in double. A task computes several chunks of a
// band before the next band, so that neighbors in memory are read together, and prefetches the next band, whose addresses the processor
// cannot predict. 2 pixels taps operations for each channel; loads bound it, or memory for large images.
//
// The batch is divided into at most 8 parts for any number of threads, so the bits do not depend on it.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/depthwise_weights.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"

#ifndef GALLEY_DEPTHWISE_WEIGHTS_ONCE
#define GALLEY_DEPTHWISE_WEIGHTS_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley::depthwise_weights {

constexpr int64_t kLanes = 16;
constexpr int64_t kMostColumns = 7;  // of a kernel: their sums fit the registers
constexpr int64_t kMostTaps = 49;

/// Output lines of one image and one kernel row; `x` and `grad` point to the first channel of a chunk.
template <class T>
struct Band {
  const T* grad;
  const T* x;
  int64_t channels, lanes;  // of the image; of a chunk, at most kLanes
  int64_t second;           // channels from the first chunk to the second one; 0: there is one chunk
  int64_t begin, end;       // output lines
  int64_t width, in_height, in_width;
  int64_t stride_h, stride_w, offset_h, padding_w;  // the input line of output line h is h stride_h + offset_h
  int64_t grad_ahead, x_ahead;                      // elements from here to the same place in the next band, which is prefetched; 0: none
};

}  // namespace galley::depthwise_weights

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::depthwise_weights {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
constexpr bool kInRegisters = false;  // no arrays of vectors
#else
constexpr bool kInRegisters = true;
#endif

/// The general case: sums[tap][lane] += grad x for any number of lanes of the chunk at `channel`.
template <class T>
void add_plainly(const Band<T>& b, int64_t channel, int64_t taps, float* HWY_RESTRICT sums) {
  for (int64_t h = b.begin; h < b.end; ++h) {
    const int64_t row = h * b.stride_h + b.offset_h;
    if (row < 0 || row >= b.in_height) continue;
    for (int64_t w = 0; w < b.width; ++w) {
      const T* g = b.grad + (h * b.width + w) * b.channels + channel;
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t column = w * b.stride_w - b.padding_w + k;
        if (column < 0 || column >= b.in_width) continue;
        const T* in = b.x + (row * b.in_width + column) * b.channels + channel;
        for (int64_t c = 0; c < b.lanes; ++c) sums[k * kLanes + c] += g[c] * in[c];
      }
    }
  }
}

#if !(HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR)
/// `columns` output columns that have all their taps within the line. Uses local sums: the compiler would store others at each prefetch.
template <int kChunks, int kTaps, int kParts, class T, class D, class ChannelOf, class V = hn::Vec<D>>
HWY_INLINE void add_inner(const Band<T>& b, D d, const T* HWY_RESTRICT g, const T* HWY_RESTRICT in, int64_t columns,
                          const ChannelOf& channel_of, V (&sums)[kTaps][kParts]) {
  using galley::HWY_NAMESPACE::load_floats;
  V sum[kTaps][kParts];
  for (int k = 0; k < kTaps; ++k) {
    for (int p = 0; p < kParts; ++p) sum[k][p] = sums[k][p];
  }
  const int64_t channels = b.channels, step = b.stride_w * channels, stride = b.stride_w, second = b.second, grad_ahead = b.grad_ahead,
                x_ahead = b.x_ahead;
  for (int64_t w = 0; w < columns; ++w, g += channels, in += step) {
    V v[kParts];
    for (int p = 0; p < kParts; ++p) v[p] = load_floats(d, g + channel_of(p));
    for (int k = 0; k < kTaps; ++k) {
      for (int p = 0; p < kParts; ++p) sum[k][p] = hn::MulAdd(v[p], load_floats(d, in + k * channels + channel_of(p)), sum[k][p]);
    }
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (grad_ahead != 0) hwy::Prefetch(g + grad_ahead + chunk * second);
      if (x_ahead != 0) {
        for (int64_t k = 0; k < stride; ++k) hwy::Prefetch(in + x_ahead + k * channels + chunk * second);
      }
    }
  }
  for (int k = 0; k < kTaps; ++k) {
    for (int p = 0; p < kParts; ++p) sums[k][p] = sum[k][p];
  }
}

/// sums[chunk][tap][lane], chunks `stride` apart.
template <int kTaps, int kChunks, class T>
void add_in_registers(const Band<T>& b, float* HWY_RESTRICT sums, int64_t stride) {
  const hn::CappedTag<float, kLanes> d;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d)), kPartsOfChunk = static_cast<int>(kLanes) / kWide,
                kParts = kPartsOfChunk * kChunks;
  using V = hn::Vec<decltype(d)>;
  using galley::HWY_NAMESPACE::load_floats;
  V sum[kTaps][kParts];
  for (auto& tap : sum) {
    for (V& part : tap) part = hn::Zero(d);
  }
  const auto channel_of = [&](int part) { return part / kPartsOfChunk * b.second + part % kPartsOfChunk * kWide; };
  // Columns [inner, outer) have all their taps within the line.
  const int64_t inner = std::min(b.width, (b.padding_w + b.stride_w - 1) / b.stride_w);
  const int64_t fits = b.in_width + b.padding_w - kTaps;
  const int64_t outer = fits < 0 ? inner : std::clamp(fits / b.stride_w + 1, inner, b.width);
  for (int64_t h = b.begin; h < b.end; ++h) {
    const int64_t row = h * b.stride_h + b.offset_h;
    if (row < 0 || row >= b.in_height) continue;
    const T* line = b.x + row * b.in_width * b.channels;
    const T* grad = b.grad + h * b.width * b.channels;
    const auto at_edge = [&](int64_t from, int64_t to) {
      for (int64_t w = from; w < to; ++w) {
        for (int k = 0; k < kTaps; ++k) {
          const int64_t column = w * b.stride_w - b.padding_w + k;
          if (column < 0 || column >= b.in_width) continue;
          for (int p = 0; p < kParts; ++p) {
            sum[k][p] = hn::MulAdd(load_floats(d, grad + w * b.channels + channel_of(p)),
                                   load_floats(d, line + column * b.channels + channel_of(p)), sum[k][p]);
          }
        }
      }
    };
    at_edge(0, inner);
    add_inner<kChunks>(b, d, grad + inner * b.channels, line + (inner * b.stride_w - b.padding_w) * b.channels, outer - inner, channel_of,
                       sum);
    at_edge(outer, b.width);
  }
  for (int k = 0; k < kTaps; ++k) {
    for (int p = 0; p < kParts; ++p) hn::StoreU(sum[k][p], d, sums + p / kPartsOfChunk * stride + k * kLanes + p % kPartsOfChunk * kWide);
  }
}

template <int kTaps, class T>
void add_chunks(const Band<T>& b, float* HWY_RESTRICT sums, int64_t stride) {
  if (b.second == 0) return add_in_registers<kTaps, 1>(b, sums, stride);
  if constexpr (hn::MaxLanes(hn::CappedTag<float, kLanes>()) == kLanes) return add_in_registers<kTaps, 2>(b, sums, stride);
  Band<T> one = b;
  one.second = 0;
  add_in_registers<kTaps, 1>(one, sums, stride);
  one.grad += b.second;
  one.x += b.second;
  add_in_registers<kTaps, 1>(one, sums + stride, stride);
}
#endif

/// sums[chunk][tap][lane], zero before, of one kernel row; chunks `stride` apart.
template <class T>
void band_sums(const Band<T>& b, int64_t taps, float* HWY_RESTRICT sums, int64_t stride) {
  if (!kInRegisters || b.lanes < kLanes) {
    add_plainly(b, 0, taps, sums);
    if (b.second != 0) add_plainly(b, b.second, taps, sums + stride);
    return;
  }
#if !(HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR)
  switch (taps) {
    case 1: return add_chunks<1>(b, sums, stride);
    case 2: return add_chunks<2>(b, sums, stride);
    case 3: return add_chunks<3>(b, sums, stride);
    case 4: return add_chunks<4>(b, sums, stride);
    case 5: return add_chunks<5>(b, sums, stride);
    case 6: return add_chunks<6>(b, sums, stride);
    default: return add_chunks<7>(b, sums, stride);
  }
#endif
}
void float_sums(const Band<float>& b, int64_t taps, float* HWY_RESTRICT sums, int64_t stride) { band_sums(b, taps, sums, stride); }
void bfloat_sums(const Band<BFloat16>& b, int64_t taps, float* HWY_RESTRICT sums, int64_t stride) { band_sums(b, taps, sums, stride); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::depthwise_weights
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace depthwise_weights {
HWY_EXPORT(float_sums);
HWY_EXPORT(bfloat_sums);

void band_sums(const Band<float>& b, int64_t taps, float* sums, int64_t stride) { HWY_DYNAMIC_DISPATCH(float_sums)(b, taps, sums, stride); }
void band_sums(const Band<BFloat16>& b, int64_t taps, float* sums, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(bfloat_sums)(b, taps, sums, stride);
}
}  // namespace depthwise_weights

namespace {

using depthwise_weights::kLanes;
using depthwise_weights::kMostTaps;

constexpr int64_t kTogether = conv_threshold::kDepthwiseChunks.value;  // chunks of a task, at most

template <class T>
class DepthwiseWeights : public PreparedKernel {
 public:
  explicit DepthwiseWeights(const KernelQuery& q) : x_(q.in(0).shape), y_(q.in(1).shape), w_(q.out(0)) {
    const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
    stride_ = pair(a.stride);
    padding_ = pair(a.padding);
    taps_ = w_.shape[2] * w_.shape[3];
    chunks_ = (x_[1] + kLanes - 1) / kLanes;
    parts_ = std::clamp<int64_t>(x_[0], 1, conv_threshold::kDepthwiseParts.value);
    while (together_ > 2 && parts_ * groups_of(together_) < q.threads) together_ /= 2;
    for (int64_t c = 0; c < x_[1]; ++c) {
      for (int64_t tap = 0; tap < taps_; ++tap)
        offsets_.push_back(w_.format.offset(w_.shape, {c, 0, tap / w_.shape[3], tap % w_.shape[3]}));
    }
  }
  int64_t scratch_bytes() const override { return parts_ * chunks_ * taps_ * kLanes * 8; }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    auto* totals = static_cast<double*>(args.scratch);
    const int64_t groups = groups_of(together_);
    parallel_ranges(parts_ * groups, 1, [&](int64_t task, int64_t) {
      add(args, task / groups, task % groups * together_, totals + task / groups * chunks_ * taps_ * kLanes);
    });
    std::memset(args.outputs[0], 0, static_cast<size_t>(w_.bytes()));  // padding of blocked formats stays zero
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t chunk = c / kLanes, lane = c - first_of(chunk);
      for (int64_t tap = 0; tap < taps_; ++tap) {
        double sum = 0;
        for (int64_t part = 0; part < parts_; ++part) sum += totals[((part * chunks_ + chunk) * taps_ + tap) * kLanes + lane];
        args.out<T>(0)[offsets_[static_cast<size_t>(c * taps_ + tap)]] = static_cast<float>(sum);
      }
    }
  }

 private:
  int64_t groups_of(int64_t together) const { return (chunks_ + together - 1) / together; }
  /// The last chunk repeats channels of the one before it, so that it is full where there are 16 channels.
  int64_t first_of(int64_t chunk) const { return std::max<int64_t>(0, std::min(chunk * kLanes, x_[1] - kLanes)); }

  /// The chunks from `from` on, together_ at most, of a part's images; totals are those of all the part's chunks.
  void add(const KernelArgs& args, int64_t part, int64_t from, double* totals) const {
    const int64_t channels = x_[1], kh = w_.shape[2], kw = w_.shape[3], to = std::min(from + together_, chunks_), of_chunk = taps_ * kLanes;
    const int64_t lines = std::max<int64_t>(1, conv_threshold::kDepthwiseBandPixels.value / y_[3]);  // of a band
    std::fill(totals + from * of_chunk, totals + to * of_chunk, 0.0);
    for (int64_t n = x_[0] * part / parts_; n < x_[0] * (part + 1) / parts_; ++n) {
      for (int64_t h = 0; h < y_[2]; h += lines) {
        for (int64_t chunk = from; chunk < to; chunk += 2) {
          const int64_t first = first_of(chunk), count = std::min<int64_t>(2, to - chunk);
          depthwise_weights::Band<T> band{args.in<T>(1) + n * y_[2] * y_[3] * channels + first,
                                          args.in<T>(0) + n * x_[2] * x_[3] * channels + first,
                                          channels,
                                          std::min(kLanes, channels),
                                          count == 2 ? first_of(chunk + 1) - first : 0,
                                          h,
                                          std::min(y_[2], h + lines),
                                          y_[3],
                                          x_[2],
                                          x_[3],
                                          stride_[0],
                                          stride_[1],
                                          0,
                                          padding_[1],
                                          0,
                                          0};
          float sums[2 * kMostTaps * kLanes] = {};
          for (int64_t k = 0; k < kh; ++k) {
            band.offset_h = k - padding_[0];
            band.grad_ahead = k == 0 ? lines * y_[3] * channels : 0;
            band.x_ahead = k < stride_[0] ? lines * stride_[0] * x_[3] * channels : 0;
            depthwise_weights::band_sums(band, kw, sums + k * kw * kLanes, of_chunk);
          }
          double* total = totals + chunk * of_chunk;
          for (int64_t i = 0; i < count * of_chunk; ++i) total[i] += static_cast<double>(sums[i]);
        }
      }
    }
  }

  Shape x_, y_;
  TensorType w_;
  std::array<int64_t, 2> stride_{}, padding_{};
  int64_t taps_ = 0, chunks_ = 0, parts_ = 0, together_ = kTogether;
  std::vector<int64_t> offsets_;  // of [channel][tap] in the weight's format
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType& x = q.in(0);
  const Shape& w = q.out(0).shape;
  if (a.groups == 1 || a.groups != x.shape[1] || w[0] != a.groups) return Support::no("not depthwise");
  if ((x.dtype != DType::kF32 && x.dtype != DType::kBF16) || q.in(1).dtype != x.dtype || q.out(0).dtype != x.dtype)
    return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_channels_last() || !q.in(1).format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (w[2] * w[3] > kMostTaps || w[3] > depthwise_weights::kMostColumns) return Support::no(cat("a kernel of ", w[2], " x ", w[3]));
  const auto dilation = pair(a.dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<DepthwiseWeights<BFloat16>>(q);
  return std::make_unique<DepthwiseWeights<float>>(q);
}

}  // namespace

const Algorithm algorithm::kDepthwiseWeights{supports, prepare};

}  // namespace galley

#endif  // HWY_ONCE
