#pragma once
// Statistics and affine maps of planes (the contiguous values of one sample's channel) and of rows of channels: the passes of normalization
// in either memory format.

#include <cstdint>

#include "libcore/ops/attrs.h"

namespace galley {

/// Mean of `count` values and the sum of squares about it.
struct Moments {
  double count = 0, mean = 0, m2 = 0;
  /// Together with others: Chan et al. 1979.
  void add(const Moments& other) {
    if (other.count == 0) return;
    const double delta = other.mean - mean, total = count + other.count;
    m2 += other.m2 + delta * delta * count * other.count / total;
    mean += delta * other.count / total;
    count = total;
  }
};

/// Moments of a plane, from fixed runs relative to their first value, so that large means lose no precision.
Moments plane_moments(const float* x, int64_t count);
/// Moments of each channel of rows [rows, channels].
void row_moments(const float* x, int64_t rows, int64_t channels, Moments* out);

/// The activation after a plane: its argument is scale x + shift; y is relu's result where that is given.
struct Through {
  Activation activation = Activation::kNone;  // none, relu, relu6 or hardswish
  const float* y = nullptr;
  float scale = 1, shift = 0;
};

/// Sums of g and of g (x - mean), g the gradient of the activation's argument.
struct GradientSums {
  double sum = 0, dot = 0;
};
GradientSums plane_gradient_sums(const float* grad, const float* x, int64_t count, float mean, const Through& through);
/// For each channel of rows, each with its mean.
void row_gradient_sums(const float* grad, const float* x, int64_t rows, int64_t channels, const float* mean, GradientSums* out);

/// y = activation(scale x + shift + residual), which lets NaN through; residual may be null.
void plane_affine(const float* x, const float* residual, float* y, int64_t count, float scale, float shift, Activation activation);
void row_affine(const float* x, float* y, int64_t rows, int64_t channels, const float* scale, const float* shift);

/// dx = a g + b (x - mean) + offset, g the gradient of the activation's argument, which is also written to dresidual where that is given.
/// dx may be grad.
struct GradientMap {
  float mean = 0, a = 0, b = 0, offset = 0;
};
void plane_gradient(const float* grad, const float* x, float* dx, float* dresidual, int64_t count, const GradientMap& map,
                    const Through& through);
void row_gradient(const float* grad, const float* x, float* dx, int64_t rows, int64_t channels, const float* mean, const float* a,
                  const float* b, const float* offset);

}  // namespace galley
