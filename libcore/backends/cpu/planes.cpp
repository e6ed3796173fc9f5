// Loops over planes and over rows of channels (planes.h). Sums about the first value of a run of 2048 (about the first row, of channels) in
// float, 32 partial sums at a time, combined in double as Chan, Golub and LeVeque do ("Updating Formulae and a Pairwise Algorithm for
// Computing Sample Variances", 1979). Each is one pass, bound by memory.

#include "libcore/backends/cpu/planes.h"

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/planes.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "libcore/backends/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace galley::planes_loops {
namespace HWY_NAMESPACE {

constexpr int64_t kLanes = 32;
constexpr int64_t kRun = 64 * kLanes;  // values summed in float
constexpr int64_t kColumns = 64;       // channels summed at once

/// Sum and sum of squares of x - shift over at most kRun values.
void shifted_sums(const float* x, int64_t count, float shift, double* sum, double* squares) {
  float s[kLanes] = {}, s2[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const float d = x[i + l] - shift;
      s[l] += d;
      s2[l] += d * d;
    }
  }
  for (int64_t l = 0; i + l < count; ++l) {
    const float d = x[i + l] - shift;
    s[l] += d;
    s2[l] += d * d;
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    *sum += static_cast<double>(s[l]);
    *squares += static_cast<double>(s2[l]);
  }
}

/// Moments from sums about `shift`.
Moments moments_from(double count, double shift, double sum, double squares) {
  return {count, shift + sum / count, std::max(0.0, squares - sum * sum / count)};
}

void shifted_column_sums(const float* x, int64_t rows, int64_t channels, int64_t columns, float* sum, float* squares) {
  for (int64_t c = 0; c < columns; ++c) sum[c] = squares[c] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float d = x[r * channels + c] - x[c];
      sum[c] += d;
      squares[c] += d * d;
    }
  }
}

void run_gradient_sums(const float* grad, const float* x, int64_t count, float mean, double* sum, double* dot) {
  float s[kLanes] = {}, d[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      s[l] += grad[i + l];
      d[l] += grad[i + l] * (x[i + l] - mean);
    }
  }
  for (int64_t l = 0; i + l < count; ++l) {
    s[l] += grad[i + l];
    d[l] += grad[i + l] * (x[i + l] - mean);
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    *sum += static_cast<double>(s[l]);
    *dot += static_cast<double>(d[l]);
  }
}

/// The gradient of the activation's argument, x scale + shift.
void gradient_through(const float* grad, const float* x, float* out, int64_t count, const Through& through) {
  const float scale = through.scale, shift = through.shift;
  switch (through.activation) {
    case Activation::kRelu:
      for (int64_t i = 0; i < count; ++i) out[i] = x[i] * scale + shift > 0 ? grad[i] : 0.0f;
      return;
    case Activation::kRelu6:
      for (int64_t i = 0; i < count; ++i) {
        const float z = x[i] * scale + shift;
        out[i] = (z > 0) & (z < 6) ? grad[i] : 0.0f;
      }
      return;
    default:
      for (int64_t i = 0; i < count; ++i) {
        const float z = x[i] * scale + shift;
        out[i] = grad[i] * (z <= -3.0f ? 0.0f : z >= 3.0f ? 1.0f : z * (1.0f / 3.0f) + 0.5f);
      }
  }
}

/// The gradient of the activation's argument for at most kRun values from `begin`: `grad` itself without an activation, else stored in
/// `buffer`.
const float* argument_gradient(const float* grad, const float* x, int64_t begin, int64_t count, const Through& through, float* buffer) {
  if (through.activation == Activation::kNone) return grad + begin;
  // The result of relu is positive where its argument is.
  const Through by_result{Activation::kRelu, nullptr, 1, 0};
  if (through.y != nullptr) {
    gradient_through(grad + begin, through.y + begin, buffer, count, by_result);
  } else {
    gradient_through(grad + begin, x + begin, buffer, count, through);
  }
  return buffer;
}

void map_gradient(const float* grad, const float* x, float* dx, int64_t count, const GradientMap& map) {
  const float mean = map.mean, a = map.a, b = map.b, offset = map.offset;
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) dx[i] = a * grad[i] + b * (x[i] - mean) + offset;
}

void activate(float* y, int64_t count, Activation activation) {
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kRelu:
      for (int64_t i = 0; i < count; ++i) y[i] = at_least(y[i], 0.0f);
      return;
    case Activation::kRelu6:
      for (int64_t i = 0; i < count; ++i) y[i] = at_most(at_least(y[i], 0.0f), 6.0f);
      return;
    default:
      for (int64_t i = 0; i < count; ++i) y[i] = y[i] * (at_most(at_least(y[i] + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f));
  }
}

void affine(const float* x, const float* residual, float* y, int64_t count, float scale, float shift) {
  if (residual != nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * scale + shift + residual[i];
  } else {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * scale + shift;
  }
}

void column_gradient_sums(const float* grad, const float* x, int64_t rows, int64_t channels, int64_t columns, const float* mean, float* sum,
                          float* dot) {
  for (int64_t c = 0; c < columns; ++c) sum[c] = dot[c] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float g = grad[r * channels + c];
      sum[c] += g;
      dot[c] += g * (x[r * channels + c] - mean[c]);
    }
  }
}

Moments plane_moments(const float* x, int64_t count) {
  Moments total;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    double sum = 0, squares = 0;
    shifted_sums(x + begin, length, x[begin], &sum, &squares);
    total.add(moments_from(static_cast<double>(length), static_cast<double>(x[begin]), sum, squares));
  }
  return total;
}

void row_moments(const float* x, int64_t rows, int64_t channels, Moments* out) {
  float sum[kColumns], squares[kColumns];
  for (int64_t first = 0; first < channels; first += kColumns) {
    const int64_t columns = std::min(kColumns, channels - first);
    shifted_column_sums(x + first, rows, channels, columns, sum, squares);
    for (int64_t c = 0; c < columns; ++c) {
      out[first + c] = moments_from(static_cast<double>(rows), static_cast<double>(x[first + c]), static_cast<double>(sum[c]),
                                    static_cast<double>(squares[c]));
    }
  }
}

GradientSums plane_gradient_sums(const float* grad, const float* x, int64_t count, float mean, const Through& through) {
  float buffer[kRun];
  GradientSums sums;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    run_gradient_sums(argument_gradient(grad, x, begin, length, through, buffer), x + begin, length, mean, &sums.sum, &sums.dot);
  }
  return sums;
}

void row_gradient_sums(const float* grad, const float* x, int64_t rows, int64_t channels, const float* mean, GradientSums* out) {
  float sum[kColumns], dot[kColumns];
  for (int64_t first = 0; first < channels; first += kColumns) {
    const int64_t columns = std::min(kColumns, channels - first);
    column_gradient_sums(grad + first, x + first, rows, channels, columns, mean + first, sum, dot);
    for (int64_t c = 0; c < columns; ++c) out[first + c] = {static_cast<double>(sum[c]), static_cast<double>(dot[c])};
  }
}

void plane_affine(const float* x, const float* residual, float* y, int64_t count, float scale, float shift, Activation activation) {
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    affine(x + begin, residual != nullptr ? residual + begin : nullptr, y + begin, length, scale, shift);
    activate(y + begin, length, activation);
  }
}

void row_affine(const float* x, float* y, int64_t rows, int64_t channels, const float* scale, const float* shift) {
  for (int64_t r = 0; r < rows; ++r) {
    GALLEY_ELEMENTWISE
    for (int64_t c = 0; c < channels; ++c) y[r * channels + c] = x[r * channels + c] * scale[c] + shift[c];
  }
}

void plane_gradient(const float* grad, const float* x, float* dx, float* dresidual, int64_t count, const GradientMap& map,
                    const Through& through) {
  float buffer[kRun];
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t length = std::min(kRun, count - begin);
    const float* g = argument_gradient(grad, x, begin, length, through, buffer);
    if (dresidual != nullptr) std::copy(g, g + length, dresidual + begin);
    map_gradient(g, x + begin, dx + begin, length, map);
  }
}

void row_gradient(const float* grad, const float* x, float* dx, int64_t rows, int64_t channels, const float* mean, const float* a,
                  const float* b, const float* offset) {
  for (int64_t r = 0; r < rows; ++r) {
    GALLEY_ELEMENTWISE
    for (int64_t c = 0; c < channels; ++c)
      dx[r * channels + c] = a[c] * grad[r * channels + c] + b[c] * (x[r * channels + c] - mean[c]) + offset[c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::planes_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace planes_loops {

HWY_EXPORT(plane_moments);
HWY_EXPORT(row_moments);
HWY_EXPORT(plane_gradient_sums);
HWY_EXPORT(row_gradient_sums);
HWY_EXPORT(plane_affine);
HWY_EXPORT(row_affine);
HWY_EXPORT(plane_gradient);
HWY_EXPORT(row_gradient);

}  // namespace planes_loops

Moments plane_moments(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(planes_loops::plane_moments)(x, count); }
void row_moments(const float* x, int64_t rows, int64_t channels, Moments* out) {
  HWY_DYNAMIC_DISPATCH(planes_loops::row_moments)(x, rows, channels, out);
}
GradientSums plane_gradient_sums(const float* grad, const float* x, int64_t count, float mean, const Through& through) {
  return HWY_DYNAMIC_DISPATCH(planes_loops::plane_gradient_sums)(grad, x, count, mean, through);
}
void row_gradient_sums(const float* grad, const float* x, int64_t rows, int64_t channels, const float* mean, GradientSums* out) {
  HWY_DYNAMIC_DISPATCH(planes_loops::row_gradient_sums)(grad, x, rows, channels, mean, out);
}
void plane_affine(const float* x, const float* residual, float* y, int64_t count, float scale, float shift, Activation activation) {
  HWY_DYNAMIC_DISPATCH(planes_loops::plane_affine)(x, residual, y, count, scale, shift, activation);
}
void row_affine(const float* x, float* y, int64_t rows, int64_t channels, const float* scale, const float* shift) {
  HWY_DYNAMIC_DISPATCH(planes_loops::row_affine)(x, y, rows, channels, scale, shift);
}
void plane_gradient(const float* grad, const float* x, float* dx, float* dresidual, int64_t count, const GradientMap& map,
                    const Through& through) {
  HWY_DYNAMIC_DISPATCH(planes_loops::plane_gradient)(grad, x, dx, dresidual, count, map, through);
}
void row_gradient(const float* grad, const float* x, float* dx, int64_t rows, int64_t channels, const float* mean, const float* a,
                  const float* b, const float* offset) {
  HWY_DYNAMIC_DISPATCH(planes_loops::row_gradient)(grad, x, dx, rows, channels, mean, a, b, offset);
}

}  // namespace galley

#endif  // HWY_ONCE
