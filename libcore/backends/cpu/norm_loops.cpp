// The loops of batch norm over rows of channels.
//
// Each loop declares that its arrays do not overlap, or that its elements are independent: with this number of arrays the compiler would
// give up its own check for overlap.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/norm_loops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/batch_norm_rows-inl.h"
#include "libcore/backends/cpu/batch_norm_rows.h"
#include "libcore/backends/cpu/norm_loops.h"
#include "libcore/backends/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace galley::batchnorm {
namespace HWY_NAMESPACE {

template <Activation kActivation>
GALLEY_INLINE float activated(float v) {
  // NaN passes through all.
  if constexpr (kActivation == Activation::kRelu) return v < 0 ? 0 : v;
  if constexpr (kActivation == Activation::kRelu6) return at_most(at_least(v, 0.0f), 6.0f);
  if constexpr (kActivation == Activation::kHardswish) return v * (at_most(at_least(v + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f));
  return v;
}

/// The gradient of the argument z of an activation whose output has gradient g; for relu z may be the output.
template <Activation kActivation>
GALLEY_INLINE float activation_gradient(float g, float z) {
  if constexpr (kActivation == Activation::kRelu) return z > 0 ? g : 0;
  if constexpr (kActivation == Activation::kRelu6) return (z > 0) & (z < 6) ? g : 0;
  if constexpr (kActivation == Activation::kHardswish) return g * (z <= -3.0f ? 0.0f : z >= 3.0f ? 1.0f : z * (1.0f / 3.0f) + 0.5f);
  return g;
}

template <Activation kActivation, bool kResidual, class T>
GALLEY_INLINE void apply_as(const T* __restrict x, const T* __restrict residual, T* __restrict y, int64_t rows, int64_t channels,
                            const float* __restrict scale, const float* __restrict shift) {
  for (int64_t r = 0; r < rows; ++r) {
    prefetch_ahead(x + r * channels, channels);
    if (kResidual) prefetch_ahead(residual + r * channels, channels);
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      const float v = x[i] * scale[c] + shift[c];
      y[i] = activated<kActivation>(kResidual ? v + residual[i] : v);
    }
  }
}

template <class T>
void apply(const T* x, const T* residual, T* y, int64_t rows, int64_t channels, const float* scale, const float* shift,
           Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return residual != nullptr ? apply_as<Activation::kRelu, true>(x, residual, y, rows, channels, scale, shift)
                                 : apply_as<Activation::kRelu, false>(x, residual, y, rows, channels, scale, shift);
    case Activation::kRelu6: return apply_as<Activation::kRelu6, false>(x, residual, y, rows, channels, scale, shift);
    case Activation::kHardswish: return apply_as<Activation::kHardswish, false>(x, residual, y, rows, channels, scale, shift);
    default:
      return residual != nullptr ? apply_as<Activation::kNone, true>(x, residual, y, rows, channels, scale, shift)
                                 : apply_as<Activation::kNone, false>(x, residual, y, rows, channels, scale, shift);
  }
}

template <Activation kActivation, bool kFromOutput, bool kWrite, bool kGated, class T>
GALLEY_INLINE void gradient_sums_as(const T* grad, const T* __restrict x, const T* __restrict y, T* pre_grad, int64_t rows,
                                    int64_t channels, const float* __restrict factor, const float* __restrict spread,
                                    const float* __restrict mean, const float* __restrict scale, const float* __restrict shift,
                                    float* __restrict sum, float* __restrict dot) {
  for (int64_t c = 0; c < channels; ++c) sum[c] = dot[c] = 0;
  by_four_rows(rows, [&](int64_t r, auto count) GALLEY_LOOP {
    prefetch_ahead(x + r * channels, count() * channels);
    prefetch_ahead(grad + r * channels, count() * channels);
    if (kFromOutput) prefetch_ahead(y + r * channels, count() * channels);
    GALLEY_ELEMENTWISE
    for (int64_t c = 0; c < channels; ++c) {
      float s = 0, d = 0;
      for (int row = 0; row < count(); ++row) {
        const int64_t i = (r + row) * channels + c;
        const float given = grad[i], v = activation_gradient<kActivation>(kGated ? given * factor[c] + spread[c] : given,
                                                                          kFromOutput ? y[i] : x[i] * scale[c] + shift[c]);
        if (kWrite) pre_grad[i] = v;
        s += v;
        d += v * (x[i] - mean[c]);
      }
      sum[c] += s;
      dot[c] += d;
    }
  });
}

template <Activation kActivation, bool kFromOutput, bool kWrite, bool kGated, class T>
GALLEY_INLINE void gradient_sums_of(const T* grad, const T* x, const Mask<T>& mask, int64_t rows, int64_t channels, const Coefficients& k,
                                    float* sum, float* dot) {
  gradient_sums_as<kActivation, kFromOutput, kWrite, kGated>(grad, x, mask.y, mask.pre_grad, rows, channels, mask.gate.factor,
                                                             mask.gate.spread, k.mean, k.scale, k.shift, sum, dot);
}

template <bool kGated, class T>
GALLEY_INLINE void gradient_sums_any(const T* grad, const T* x, const Mask<T>& mask, int64_t rows, int64_t channels, const Coefficients& k,
                                     float* sum, float* dot) {
  switch (mask.activation) {
    case Activation::kRelu:
      if (kGated || mask.y == nullptr)
        return gradient_sums_of<Activation::kRelu, false, false, kGated>(grad, x, mask, rows, channels, k, sum, dot);
      return mask.pre_grad != nullptr ? gradient_sums_of<Activation::kRelu, true, true, false>(grad, x, mask, rows, channels, k, sum, dot)
                                      : gradient_sums_of<Activation::kRelu, true, false, false>(grad, x, mask, rows, channels, k, sum, dot);
    case Activation::kRelu6: return gradient_sums_of<Activation::kRelu6, false, false, kGated>(grad, x, mask, rows, channels, k, sum, dot);
    case Activation::kHardswish:
      return gradient_sums_of<Activation::kHardswish, false, false, kGated>(grad, x, mask, rows, channels, k, sum, dot);
    default: return gradient_sums_of<Activation::kNone, false, false, kGated>(grad, x, mask, rows, channels, k, sum, dot);
  }
}

/// sum(g) and sum(g (x - mean)), g the gradient of the activation's argument.
template <class T>
void gradient_sums(const T* grad, const T* x, const Mask<T>& mask, int64_t rows, int64_t channels, const Coefficients& k, float* sum,
                   float* dot) {
  mask.gate.factor != nullptr ? gradient_sums_any<true>(grad, x, mask, rows, channels, k, sum, dot)
                              : gradient_sums_any<false>(grad, x, mask, rows, channels, k, sum, dot);
}

template <Activation kActivation, bool kFromOutput, bool kResidual, bool kGated, class T>
GALLEY_INLINE void apply_gradient_as(const T* grad, const T* x, const T* __restrict y, T* dx, T* dresidual, int64_t rows, int64_t channels,
                                     const float* __restrict factor, const float* __restrict spread, const float* __restrict mean,
                                     const float* __restrict scale, const float* __restrict shift, const float* __restrict a,
                                     const float* __restrict b, const float* __restrict offset) {
  for (int64_t r = 0; r < rows; ++r) {
    prefetch_ahead(x + r * channels, channels);
    prefetch_ahead(grad + r * channels, channels);
    if (kFromOutput) prefetch_ahead(y + r * channels, channels);
    GALLEY_ELEMENTWISE
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      const float at = x[i], given = grad[i],
                  v = activation_gradient<kActivation>(kGated ? given * factor[c] + spread[c] : given,
                                                       kFromOutput ? y[i] : at * scale[c] + shift[c]);
      if (kResidual) dresidual[i] = v;
      dx[i] = a[c] * v + b[c] * (at - mean[c]) + offset[c];
    }
  }
}

template <Activation kActivation, bool kFromOutput, bool kResidual, bool kGated, class T>
GALLEY_INLINE void apply_gradient_to(const T* grad, const T* x, const Mask<T>& mask, T* dx, T* dresidual, int64_t rows, int64_t channels,
                                     const Coefficients& k) {
  apply_gradient_as<kActivation, kFromOutput, kResidual, kGated>(grad, x, mask.y, dx, dresidual, rows, channels, mask.gate.factor,
                                                                 mask.gate.spread, k.mean, k.scale, k.shift, k.a, k.b, k.offset);
}

template <bool kGated, class T>
GALLEY_INLINE void apply_gradient_any(const T* grad, const T* x, const Mask<T>& mask, T* dx, T* dresidual, int64_t rows, int64_t channels,
                                      const Coefficients& k) {
  switch (mask.activation) {
    case Activation::kRelu:
      return kGated || mask.y == nullptr
                 ? apply_gradient_to<Activation::kRelu, false, false, kGated>(grad, x, mask, dx, dresidual, rows, channels, k)
                 : apply_gradient_to<Activation::kRelu, true, false, false>(grad, x, mask, dx, dresidual, rows, channels, k);
    case Activation::kRelu6:
      return apply_gradient_to<Activation::kRelu6, false, false, kGated>(grad, x, mask, dx, dresidual, rows, channels, k);
    case Activation::kHardswish:
      return apply_gradient_to<Activation::kHardswish, false, false, kGated>(grad, x, mask, dx, dresidual, rows, channels, k);
    default:
      return !kGated && dresidual != nullptr
                 ? apply_gradient_to<Activation::kNone, false, true, false>(grad, x, mask, dx, dresidual, rows, channels, k)
                 : apply_gradient_to<Activation::kNone, false, false, kGated>(grad, x, mask, dx, dresidual, rows, channels, k);
  }
}

/// dx = a g + b (x - mean) + offset for each channel.
template <class T>
void apply_gradient(const T* grad, const T* x, const Mask<T>& mask, T* dx, T* dresidual, int64_t rows, int64_t channels,
                    const Coefficients& k) {
  mask.gate.factor != nullptr ? apply_gradient_any<true>(grad, x, mask, dx, dresidual, rows, channels, k)
                              : apply_gradient_any<false>(grad, x, mask, dx, dresidual, rows, channels, k);
}

template <class T>
constexpr Loops<T> loops_here() {
  return {apply<T>, gradient_sums<T>, apply_gradient<T>};
}
Loops<float> loops_f32() { return loops_here<float>(); }
Loops<BFloat16> loops_bf16() { return loops_here<BFloat16>(); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::batchnorm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley::batchnorm {
HWY_EXPORT(loops_f32);
HWY_EXPORT(loops_bf16);

template <>
Loops<float> loops() {
  return HWY_DYNAMIC_DISPATCH(loops_f32)();
}
template <>
Loops<BFloat16> loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bf16)();
}

}  // namespace galley::batchnorm
#endif  // HWY_ONCE
