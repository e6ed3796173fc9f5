#pragma once
// What kernels of batch norm share: the batch's statistics, and what follows from them for each channel.

#include <cmath>
#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"

namespace galley::batchnorm {

/// An array as `pixels` rows of `channels`.
struct Rows {
  int64_t pixels = 0, channels = 0;
};

/// Blocks of pixels of about 256 KiB in f32, so that combining their sums is little work; at most 256 blocks, or `parts`. Their bounds
/// depend on sizes and the logical thread count only.
class Blocks {
 public:
  /// The pixels in `parts` equal parts, with the same number of blocks in each.
  Blocks(Rows rows, int threads, int64_t parts = 1);
  int64_t begin(int64_t block) const { return rows_.pixels * block / count; }
  int64_t count = 1;

 private:
  Rows rows_;
};

/// Mean and (biased) variance of each channel. Sums run over blocks of pixels, a block at a time around its first row (so that large means
/// lose nothing), and are combined in one order: bits depend on the logical thread count only.
template <class T>
class Statistics {
 public:
  Statistics(Rows rows, int threads) : rows_(rows), blocks_(rows, threads) {}
  int64_t scratch_bytes() const { return blocks_.count * 2 * rows_.channels * 4; }
  void run(const T* x, float* mean, float* var, void* scratch) const;

 private:
  void combine(const T* x, const float* sums, int64_t first, int64_t lanes, float* mean, float* var) const;

  Rows rows_;
  Blocks blocks_;
};

/// One channel: y = x scale + shift.
struct Affine {
  double scale, shift;
};
/// gamma and beta are 1 and 0 where there are none (nullptr).
inline Affine affine_of(int64_t channel, const float* mean, const float* var, const float* gamma, const float* beta, double eps) {
  const double scale = (gamma != nullptr ? static_cast<double>(gamma[channel]) : 1.0) / std::sqrt(static_cast<double>(var[channel]) + eps);
  return {scale, (beta != nullptr ? static_cast<double>(beta[channel]) : 0.0) - static_cast<double>(mean[channel]) * scale};
}

/// One channel's gradients: dx = a g + b (x - mean) + offset, g the gradient of the activation's argument.
struct ChannelGradient {
  double dgamma, dbeta, a, b, offset;
};
/// `sum` of g, `dot` of g (x - mean), over `count` pixels (Ioffe, Szegedy 2015, section 3).
inline ChannelGradient gradient_of(double sum, double dot, int64_t count, double scale, double var, double eps) {
  const double rstd = 1 / std::sqrt(var + eps), n = static_cast<double>(count);
  return {dot * rstd, sum, scale, -scale * rstd * rstd * dot / n, -scale * sum / n};
}

}  // namespace galley::batchnorm
