// The weight gradient of depthwise convolutions on channels_last images: 16 channels a task, every tap's sum kept in the nearest cache,
// a line of the output at a time in float, lines in double. Bits do not depend on the thread count.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

#define GALLEY_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

constexpr int64_t kLanes = 16;
constexpr int64_t kMostTaps = 49;

/// Columns of one output line, for one kernel row: sums[kw][lane] += grad * x.
GALLEY_CLONES void line_sums(const float* grad, const float* x, int64_t channels, int64_t lanes, int64_t width, int64_t in_width, int64_t taps, int64_t stride,
                             int64_t padding, float* sums) {
  for (int64_t w = 0; w < width; ++w) {
    const float* g = grad + w * channels;
    for (int64_t k = 0; k < taps; ++k) {
      const int64_t column = w * stride - padding + k;
      if (column < 0 || column >= in_width) continue;
      const float* in = x + column * channels;
      float* sum = sums + k * kLanes;
      if (lanes == kLanes) {
        for (int64_t c = 0; c < kLanes; ++c) sum[c] += g[c] * in[c];
      } else {
        for (int64_t c = 0; c < lanes; ++c) sum[c] += g[c] * in[c];
      }
    }
  }
}

class DepthwiseWeights : public PreparedKernel {
 public:
  explicit DepthwiseWeights(const KernelQuery& q) : x_(q.in(0).shape), y_(q.in(1).shape), w_(q.out(0)) {
    const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
    stride_ = pair(a.stride);
    padding_ = pair(a.padding);
  }
  void run(const KernelArgs& args) const override {
    const int64_t channels = x_[1], kh = w_.shape[2], kw = w_.shape[3], taps = kh * kw;
    std::memset(args.outputs[0], 0, static_cast<size_t>(w_.bytes()));  // padding of blocked formats stays zero
    parallel_for((channels + kLanes - 1) / kLanes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task * kLanes, lanes = std::min(kLanes, channels - first);
        double total[kMostTaps * kLanes] = {};
        float sums[kMostTaps * kLanes];
        for (int64_t line = 0; line < y_[0] * y_[2]; ++line) {
          const int64_t n = line / y_[2], h = line % y_[2];
          std::fill_n(sums, taps * kLanes, 0.0f);
          for (int64_t k = 0; k < kh; ++k) {
            const int64_t row = h * stride_[0] - padding_[0] + k;
            if (row < 0 || row >= x_[2]) continue;
            line_sums(args.in<float>(1) + line * y_[3] * channels + first, args.in<float>(0) + (n * x_[2] + row) * x_[3] * channels + first, channels, lanes, y_[3],
                      x_[3], kw, stride_[1], padding_[1], sums + k * kw * kLanes);
          }
          for (int64_t i = 0; i < taps * kLanes; ++i) total[i] += static_cast<double>(sums[i]);
        }
        for (int64_t c = 0; c < lanes; ++c) {
          for (int64_t k = 0; k < taps; ++k) {
            args.out<float>(0)[w_.format.offset(w_.shape, {first + c, 0, k / kw, k % kw})] = static_cast<float>(total[k * kLanes + c]);
          }
        }
      }
    });
  }

 private:
  Shape x_, y_;
  TensorType w_;
  std::array<int64_t, 2> stride_{}, padding_{};
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType& x = q.in(0);
  const Shape& w = q.out(0).shape;
  if (a.groups == 1 || a.groups != x.shape[1] || w[0] != a.groups) return Support::no("not depthwise");
  if (x.dtype != DType::kF32 || q.in(1).dtype != DType::kF32 || q.out(0).dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_channels_last() || !q.in(1).format.is_channels_last()) return Support::no(cat("format ", x.format));
  if (w[2] * w[3] > kMostTaps) return Support::no(cat("a kernel of ", w[2], " x ", w[3]));
  const auto dilation = pair(a.dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{{{"conv2d_backward_weights", "cpu", supports,
                                       [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<DepthwiseWeights>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_depthwise() { return kKernels; }

}  // namespace galley
