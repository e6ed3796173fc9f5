// Batch normalisation on channels_last (and rank-2) arrays, fused with relu and residual: forward one pass for statistics and one to apply,
// backward likewise. Sums run over fixed blocks of pixels, a block at a time around its first row (so that large means lose nothing),
// and are combined in one order: bits depend on the logical thread count only.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

#define GALLEY_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

/// An array as `pixels` rows of `channels`.
struct Rows {
  int64_t pixels = 0, channels = 0;
};

bool is_rows(const TensorType& type) { return type.shape.rank() == 2 || type.format.is_channels_last(); }
Rows rows_of(const TensorType& type) {
  const int64_t channels = type.shape[1];
  return {channels == 0 ? 0 : type.elements() / channels, channels};
}

Support supports_rows(const KernelQuery& q, std::initializer_list<int> inputs) {
  for (int i : inputs) {
    if (!q.has(i)) continue;
    const TensorType& type = q.in(i);
    if (type.dtype != DType::kF32) return Support::no(cat("dtype ", type.dtype));
    if (type.shape.rank() > 1 && !is_rows(type)) return Support::no(cat("format ", type.format));
    if (type.elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

/// Blocks of pixels: a fixed cut, about 64 KiB of channels each, at most 256 of them.
struct Blocks {
  Blocks(Rows rows, int threads) : rows_(rows) {
    const int64_t by_size = std::max<int64_t>(1, rows.pixels * rows.channels / 16384);
    count = std::clamp<int64_t>(by_size, std::min<int64_t>(threads, rows.pixels), std::min<int64_t>(256, rows.pixels));
  }
  int64_t begin(int64_t block) const { return rows_.pixels * block / count; }
  int64_t count = 1;

 private:
  Rows rows_;
};

/// sum and sum of squares of x - shift over rows [begin, end); shift is the block's first row.
GALLEY_CLONES void shifted_sums(const float* x, int64_t rows, int64_t channels, const float* shift, float* sum, float* squares) {
  for (int64_t c = 0; c < channels; ++c) sum[c] = squares[c] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const float d = row[c] - shift[c];
      sum[c] += d;
      squares[c] += d * d;
    }
  }
}

GALLEY_CLONES void apply(const float* x, const float* residual, float* y, int64_t rows, int64_t channels, const float* scale, const float* shift, bool relu) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * channels;
    float* out = y + r * channels;
    if (residual != nullptr) {
      const float* add = residual + r * channels;
      if (relu) {
        for (int64_t c = 0; c < channels; ++c) {
          const float v = in[c] * scale[c] + shift[c] + add[c];
          out[c] = v < 0 ? 0 : v;  // NaN stays
        }
      } else {
        for (int64_t c = 0; c < channels; ++c) out[c] = in[c] * scale[c] + shift[c] + add[c];
      }
    } else if (relu) {
      for (int64_t c = 0; c < channels; ++c) {
        const float v = in[c] * scale[c] + shift[c];
        out[c] = v < 0 ? 0 : v;  // NaN stays
      }
    } else {
      for (int64_t c = 0; c < channels; ++c) out[c] = in[c] * scale[c] + shift[c];
    }
  }
}

/// sum(g) and sum(g (x - mean)), g the gradient behind the relu's mask y > 0.
GALLEY_CLONES void gradient_sums(const float* grad, const float* x, const float* y, int64_t rows, int64_t channels, const float* mean, float* sum, float* dot) {
  for (int64_t c = 0; c < channels; ++c) sum[c] = dot[c] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* g = grad + r * channels;
    const float* in = x + r * channels;
    if (y != nullptr) {
      const float* out = y + r * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const float v = out[c] > 0 ? g[c] : 0;
        sum[c] += v;
        dot[c] += v * (in[c] - mean[c]);
      }
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        sum[c] += g[c];
        dot[c] += g[c] * (in[c] - mean[c]);
      }
    }
  }
}

/// dx = a g + b (x - mean) + c for each channel.
GALLEY_CLONES void apply_gradient(const float* grad, const float* x, const float* y, float* dx, float* dresidual, int64_t rows, int64_t channels, const float* mean,
                                  const float* a, const float* b, const float* offset) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* g = grad + r * channels;
    const float* in = x + r * channels;
    float* out = dx + r * channels;
    if (y != nullptr) {
      const float* mask = y + r * channels;
      if (dresidual != nullptr) {
        float* through = dresidual + r * channels;
        for (int64_t c = 0; c < channels; ++c) {
          const float v = mask[c] > 0 ? g[c] : 0;
          through[c] = v;
          out[c] = a[c] * v + b[c] * (in[c] - mean[c]) + offset[c];
        }
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          const float v = mask[c] > 0 ? g[c] : 0;
          out[c] = a[c] * v + b[c] * (in[c] - mean[c]) + offset[c];
        }
      }
    } else {
      for (int64_t c = 0; c < channels; ++c) {
        if (dresidual != nullptr) dresidual[r * channels + c] = g[c];
        out[c] = a[c] * g[c] + b[c] * (in[c] - mean[c]) + offset[c];
      }
    }
  }
}

class BatchNormForward : public PreparedKernel {
 public:
  explicit BatchNormForward(const KernelQuery& q) : rows_(rows_of(q.in(0))), blocks_(rows_, q.threads), eps_(q.attrs<BatchNormAttrs>().eps),
                                                    relu_(q.attrs<BatchNormAttrs>().activation == Activation::kRelu) {}
  int64_t scratch_bytes() const override { return (blocks_.count * 2 + 2) * rows_.channels * 4; }
  void run(const KernelArgs& args) const override {
    const int64_t channels = rows_.channels;
    const float* x = args.in<float>(0);
    auto* scratch = static_cast<float*>(args.scratch);
    float* scale = scratch + blocks_.count * 2 * channels;
    float* shift = scale + channels;
    parallel_for(blocks_.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const float* first = x + blocks_.begin(b) * channels;
        shifted_sums(first, blocks_.begin(b + 1) - blocks_.begin(b), channels, first, scratch + b * 2 * channels, scratch + (b * 2 + 1) * channels);
      }
    });
    float* mean = args.out<float>(1);
    float* var = args.out<float>(2);
    const double count = static_cast<double>(rows_.pixels);
    for (int64_t c = 0; c < channels; ++c) {
      // Chan et al. 1979: blocks' means and squares about them, combined pairwise in block order.
      double n = 0, m = 0, m2 = 0;
      for (int64_t b = 0; b < blocks_.count; ++b) {
        const double k = static_cast<double>(blocks_.begin(b + 1) - blocks_.begin(b));
        const double s = static_cast<double>(scratch[b * 2 * channels + c]), s2 = static_cast<double>(scratch[(b * 2 + 1) * channels + c]);
        const double block_mean = static_cast<double>(x[blocks_.begin(b) * channels + c]) + s / k, block_m2 = std::max(0.0, s2 - s * s / k);
        const double delta = block_mean - m;
        m2 += block_m2 + delta * delta * n * k / (n + k);
        m += delta * k / (n + k);
        n += k;
      }
      mean[c] = static_cast<float>(m);
      var[c] = static_cast<float>(m2 / count);
      const double gamma = args.in<float>(1) != nullptr ? static_cast<double>(args.in<float>(1)[c]) : 1.0, beta = args.in<float>(2) != nullptr ? static_cast<double>(args.in<float>(2)[c]) : 0.0;
      const double s = gamma / std::sqrt(m2 / count + eps_);
      scale[c] = static_cast<float>(s);
      shift[c] = static_cast<float>(beta - m * s);
    }
    const float* residual = args.in<float>(3);
    float* y = args.out<float>(0);
    parallel_for(rows_.pixels, std::max<int64_t>(1, 16384 / channels), [&](int64_t begin, int64_t end) {
      apply(x + begin * channels, residual != nullptr ? residual + begin * channels : nullptr, y + begin * channels, end - begin, channels, scale, shift, relu_);
    });
  }

 private:
  Rows rows_;
  Blocks blocks_;
  double eps_;
  bool relu_;
};

class BatchNormBackward : public PreparedKernel {
 public:
  explicit BatchNormBackward(const KernelQuery& q) : rows_(rows_of(q.in(1))), blocks_(rows_, q.threads), eps_(q.attrs<BatchNormBackwardAttrs>().eps),
                                                     residual_(q.attrs<BatchNormBackwardAttrs>().residual) {}
  int64_t scratch_bytes() const override { return (blocks_.count * 2 + 3) * rows_.channels * 4; }
  void run(const KernelArgs& args) const override {
    const int64_t channels = rows_.channels;
    const float* grad = args.in<float>(0);
    const float* x = args.in<float>(1);
    const float* mean = args.in<float>(2);
    const float* var = args.in<float>(3);
    const float* gamma = args.in<float>(4);
    const float* y = args.in<float>(5);
    auto* scratch = static_cast<float*>(args.scratch);
    float* a = scratch + blocks_.count * 2 * channels;
    float* b = a + channels;
    float* offset = b + channels;
    parallel_for(blocks_.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = blocks_.begin(block) * channels;
        gradient_sums(grad + at, x + at, y != nullptr ? y + at : nullptr, blocks_.begin(block + 1) - blocks_.begin(block), channels, mean, scratch + block * 2 * channels,
                      scratch + (block * 2 + 1) * channels);
      }
    });
    const double count = static_cast<double>(rows_.pixels);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, dot = 0;
      for (int64_t block = 0; block < blocks_.count; ++block) {
        sum += static_cast<double>(scratch[block * 2 * channels + c]);
        dot += static_cast<double>(scratch[(block * 2 + 1) * channels + c]);
      }
      const double rstd = 1 / std::sqrt(static_cast<double>(var[c]) + eps_), g = gamma != nullptr ? static_cast<double>(gamma[c]) : 1.0;
      args.out<float>(1)[c] = static_cast<float>(dot * rstd);
      args.out<float>(2)[c] = static_cast<float>(sum);
      a[c] = static_cast<float>(g * rstd);
      b[c] = static_cast<float>(-g * rstd * rstd * rstd * dot / count);
      offset[c] = static_cast<float>(-g * rstd * sum / count);
    }
    float* dx = args.out<float>(0);
    float* dresidual = residual_ ? args.out<float>(3) : nullptr;
    parallel_for(rows_.pixels, std::max<int64_t>(1, 16384 / channels), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * channels;
      apply_gradient(grad + at, x + at, y != nullptr ? y + at : nullptr, dx + at, dresidual != nullptr ? dresidual + at : nullptr, end - begin, channels, mean, a, b, offset);
    });
  }

 private:
  Rows rows_;
  Blocks blocks_;
  double eps_;
  bool residual_;
};

class BatchNormInference : public PreparedKernel {
 public:
  explicit BatchNormInference(const KernelQuery& q) : rows_(rows_of(q.in(0))), eps_(q.attrs<BatchNormInferenceAttrs>().eps),
                                                      relu_(q.attrs<BatchNormInferenceAttrs>().activation == Activation::kRelu) {}
  int64_t scratch_bytes() const override { return 2 * rows_.channels * 4; }
  void run(const KernelArgs& args) const override {
    const int64_t channels = rows_.channels;
    auto* scale = static_cast<float*>(args.scratch);
    float* shift = scale + channels;
    for (int64_t c = 0; c < channels; ++c) {
      const double gamma = args.in<float>(1) != nullptr ? static_cast<double>(args.in<float>(1)[c]) : 1.0, beta = args.in<float>(2) != nullptr ? static_cast<double>(args.in<float>(2)[c]) : 0.0;
      const double s = gamma / std::sqrt(static_cast<double>(args.in<float>(4)[c]) + eps_);
      scale[c] = static_cast<float>(s);
      shift[c] = static_cast<float>(beta - static_cast<double>(args.in<float>(3)[c]) * s);
    }
    parallel_for(rows_.pixels, std::max<int64_t>(1, 16384 / channels), [&](int64_t begin, int64_t end) {
      apply(args.in<float>(0) + begin * channels, nullptr, args.out<float>(0) + begin * channels, end - begin, channels, scale, shift, relu_);
    });
  }

 private:
  Rows rows_;
  double eps_;
  bool relu_;
};

Support supports_forward(const KernelQuery& q) { return supports_rows(q, {0, 3}); }
Support supports_backward(const KernelQuery& q) { return supports_rows(q, {0, 1, 5}); }
Support supports_inference(const KernelQuery& q) {
  const Activation activation = q.attrs<BatchNormInferenceAttrs>().activation;
  if (activation != Activation::kNone && activation != Activation::kRelu) return Support::no("this activation is not fused");
  return supports_rows(q, {0});
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 3> kKernels{{{"batch_norm", "cpu", supports_forward, prepare<BatchNormForward>},
                                      {"batch_norm_backward", "cpu", supports_backward, prepare<BatchNormBackward>},
                                      {"batch_norm_inference", "cpu", supports_inference, prepare<BatchNormInference>}}};

}  // namespace

std::span<const Kernel> cpu_norm() { return kKernels; }

}  // namespace galley
