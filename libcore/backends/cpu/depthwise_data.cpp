// depthwise: the input gradient of strided depthwise convolutions in bf16 on channels_last images. oneDNN 3.2 computes these by its
// reference only; for f32 its kernels run at the speed of memory.
//
// An input pixel gathers from the few output pixels whose windows contain it. Pixels whose columns have the same phase (remainder modulo
// the stride) use the same taps, so a line is computed phase by phase. The weight is converted to f32 as [tap][channel]; images are read
// where they are, 16 channels at a time. 2 pixels taps / stride^2 operations for each channel; memory bounds it.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/depthwise_data.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"

#ifndef GALLEY_DEPTHWISE_DATA_ONCE
#define GALLEY_DEPTHWISE_DATA_ONCE

#include <algorithm>
#include <array>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley::depthwise_data {

constexpr int64_t kChannels = 16;  // of a task at a time
constexpr int kMostTaps = 16;      // that one pixel can have

/// Pixels of a line of the result that have these taps in common: out[i step] = sum over taps of grad[tap][i channels] weight[tap].
struct Line {
  BFloat16* out;
  std::array<const BFloat16*, kMostTaps> grad;
  std::array<const float*, kMostTaps> weight;
  int taps;
  int64_t count;           // pixels
  int64_t step, channels;  // between values of neighboring pixels: of the result, of the gradient
  int64_t lanes;           // channels, at most kChannels
};

}  // namespace galley::depthwise_data

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::depthwise_data {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void plain_line(const Line& line) {
  for (int64_t i = 0; i < line.count; ++i) {
    for (int64_t c = 0; c < line.lanes; ++c) {
      float sum = 0;
      for (int k = 0; k < line.taps; ++k)
        sum += static_cast<float>(line.grad[static_cast<size_t>(k)][i * line.channels + c]) * line.weight[static_cast<size_t>(k)][c];
      line.out[i * line.step + c] = sum;
    }
  }
}

#if !(HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR)
/// kTaps 0: as many as the line says.
template <int kTaps>
void vector_line(const Line& line) {
  using galley::HWY_NAMESPACE::load_floats;
  using galley::HWY_NAMESPACE::store_floats;
  const hn::CappedTag<float, kChannels> d;
  constexpr int kWide = static_cast<int>(hn::MaxLanes(d)), kParts = static_cast<int>(kChannels) / kWide;
  const int taps = kTaps == 0 ? line.taps : kTaps;
  for (int p = 0; p < kParts; ++p) {
    for (int64_t i = 0; i < line.count; ++i) {
      auto sum = hn::Zero(d);
      for (int k = 0; k < taps; ++k) {
        const auto at = static_cast<size_t>(k);
        sum = hn::MulAdd(load_floats(d, line.grad[at] + i * line.channels + p * kWide), hn::LoadU(d, line.weight[at] + p * kWide), sum);
      }
      store_floats(sum, d, line.out + i * line.step + p * kWide);
    }
  }
}

void sum_line(const Line& line) {
  if (line.lanes < kChannels) return plain_line(line);
  switch (line.taps) {
    case 1: return vector_line<1>(line);
    case 2: return vector_line<2>(line);
    case 4: return vector_line<4>(line);
    case 6: return vector_line<6>(line);
    case 9: return vector_line<9>(line);
    default: return vector_line<0>(line);
  }
}
#else
void sum_line(const Line& line) { plain_line(line); }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::depthwise_data
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace depthwise_data {
HWY_EXPORT(sum_line);
}  // namespace depthwise_data

namespace {

using depthwise_data::kChannels;

/// For one axis, a tap of coordinates with the same remainder modulo the stride, and the index in the gradient that it reads, relative to
/// coordinate / stride.
struct Reach {
  int64_t tap, shift;
};
std::vector<Reach> reaches(int64_t remainder, int64_t stride, int64_t padding, int64_t kernel) {
  std::vector<Reach> found;
  for (int64_t tap = (remainder + padding) % stride; tap < kernel; tap += stride)
    found.push_back({tap, (remainder + padding - tap) / stride});
  return found;
}

class DepthwiseData : public PreparedKernel {
 public:
  explicit DepthwiseData(const KernelQuery& q) : x_(q.out(0).shape), y_(q.in(0).shape), w_(q.in(1)) {
    const auto& a = q.attrs<Conv2dBackwardDataAttrs>();
    stride_ = pair(a.stride);
    const auto padding = pair(a.padding);
    for (int axis = 0; axis < 2; ++axis) {
      for (int64_t r = 0; r < stride_[static_cast<size_t>(axis)]; ++r) {
        reaches_[static_cast<size_t>(axis)].push_back(
            reaches(r, stride_[static_cast<size_t>(axis)], padding[static_cast<size_t>(axis)], w_.shape[2 + axis]));
      }
    }
    for (int64_t tap = 0; tap < taps(); ++tap) {
      for (int64_t c = 0; c < x_[1]; ++c) offsets_.push_back(w_.format.offset(w_.shape, {c, 0, tap / w_.shape[3], tap % w_.shape[3]}));
    }
  }
  int64_t scratch_bytes() const override { return taps() * x_[1] * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* weight = static_cast<float*>(args.scratch);  // [tap][channel]
    for (size_t i = 0; i < offsets_.size(); ++i) weight[i] = args.in<BFloat16>(1)[offsets_[i]];
    parallel_for(x_[0] * x_[2], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) fill(args.in<BFloat16>(0), weight, line / x_[2], line % x_[2], args.out<BFloat16>(0));
    });
  }

 private:
  int64_t taps() const { return w_.shape[2] * w_.shape[3]; }

  void fill(const BFloat16* grad, const float* weight, int64_t image, int64_t row, BFloat16* out) const {
    const int64_t channels = x_[1];
    for (int64_t remainder = 0; remainder < std::min(stride_[1], x_[3]); ++remainder) {
      const std::vector<Reach>& columns = reaches_[1][static_cast<size_t>(remainder)];
      const int64_t count = (x_[3] - remainder + stride_[1] - 1) / stride_[1];
      // Pixels [inner, outer) have all these taps within the gradient's line.
      int64_t inner = 0, outer = count;
      for (const Reach& column : columns) {
        inner = std::max(inner, -column.shift);
        outer = std::min(outer, y_[3] - column.shift);
      }
      inner = std::min(inner, count);
      outer = std::max(outer, inner);
      BFloat16* to = out + ((image * x_[2] + row) * x_[3] + remainder) * channels;
      const auto pixels = [&](int64_t from, int64_t end) {
        if (from >= end) return;
        depthwise_data::Line line{};
        line.count = end - from;
        line.step = stride_[1] * channels;
        line.channels = channels;
        line.lanes = std::min(kChannels, channels);
        std::array<int64_t, depthwise_data::kMostTaps> grad_at{}, weight_at{};
        for (const Reach& r : reaches_[0][static_cast<size_t>(row % stride_[0])]) {
          const int64_t h = row / stride_[0] + r.shift;
          if (h < 0 || h >= y_[2]) continue;
          for (const Reach& c : columns) {
            if (from + c.shift < 0 || end - 1 + c.shift >= y_[3]) continue;  // of a single pixel at an edge
            const auto k = static_cast<size_t>(line.taps++);
            grad_at[k] = ((image * y_[2] + h) * y_[3] + from + c.shift) * channels;
            weight_at[k] = (r.tap * w_.shape[3] + c.tap) * channels;
          }
        }
        for (int64_t chunk = 0; chunk < channels; chunk += kChannels) {
          // The last chunk repeats channels of the one before it, so that it is full where there are 16 channels.
          const int64_t first = std::max<int64_t>(0, std::min(chunk, channels - kChannels));
          for (size_t k = 0; k < static_cast<size_t>(line.taps); ++k) {
            line.grad[k] = grad + grad_at[k] + first;
            line.weight[k] = weight + weight_at[k] + first;
          }
          line.out = to + from * line.step + first;
          HWY_DYNAMIC_DISPATCH(depthwise_data::sum_line)(line);
        }
      };
      for (int64_t i = 0; i < inner; ++i) pixels(i, i + 1);
      pixels(inner, outer);
      for (int64_t i = outer; i < count; ++i) pixels(i, i + 1);
    }
  }

  Shape x_, y_;
  TensorType w_;
  std::array<int64_t, 2> stride_{};
  std::array<std::vector<std::vector<Reach>>, 2> reaches_;  // [axis][remainder]
  std::vector<int64_t> offsets_;                            // of [tap][channel] in the weight's format
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardDataAttrs>();
  const TensorType &grad = q.in(0), &w = q.in(1), &x = q.out(0);
  if (a.groups == 1 || a.groups != x.shape[1] || w.shape[0] != a.groups) return Support::no("not depthwise");
  if (q.has(2)) return Support::no("a residual");
  if (grad.dtype != DType::kBF16 || w.dtype != grad.dtype || x.dtype != grad.dtype) return Support::no(cat("dtype ", grad.dtype));
  if (!grad.format.is_channels_last() || !x.format.is_channels_last()) return Support::no(cat("format ", grad.format));
  const auto stride = pair(a.stride), dilation = pair(a.dilation);
  if (stride[0] == 1 && stride[1] == 1) return Support::no("no stride");
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  const auto most = [&](int axis) {
    return (w.shape[2 + axis] + stride[static_cast<size_t>(axis)] - 1) / stride[static_cast<size_t>(axis)];
  };
  if (most(0) * most(1) > depthwise_data::kMostTaps) return Support::no(cat("a kernel of ", w.shape[2], " x ", w.shape[3]));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kDepthwiseData{supports, prepare_as<DepthwiseData>};

}  // namespace galley

#endif  // HWY_ONCE
