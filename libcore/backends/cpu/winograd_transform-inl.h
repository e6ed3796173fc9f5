// The 1-D transforms of rewrite/winograd.h on vectors; sums that rows share are computed once. Included once per target.

#if defined(GALLEY_WINOGRAD_TRANSFORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GALLEY_WINOGRAD_TRANSFORM_INL_H_
#undef GALLEY_WINOGRAD_TRANSFORM_INL_H_
#else
#define GALLEY_WINOGRAD_TRANSFORM_INL_H_
#endif

#include <hwy/highway.h>

#include "libcore/backends/cpu/product_targets.h"
#include "libcore/backends/cpu/rewrite/winograd.h"

HWY_BEFORE_NAMESPACE();
namespace galley::winograd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if GALLEY_WIDE_TARGET

using Floats = hn::CappedTag<float, 16>;
using V = hn::Vec<Floats>;
constexpr int64_t kWide = static_cast<int64_t>(hn::MaxLanes(Floats()));

HWY_INLINE V number(double value) { return hn::Set(Floats(), static_cast<float>(value)); }

/// kImage d.
HWY_INLINE void image_line(const V (&in)[kIn], V (&out)[kIn]) {
  const V even_a = hn::NegMulAdd(number(2), in[2], in[4]), odd_a = hn::NegMulAdd(number(2), in[1], in[3]);
  const V even_b = hn::NegMulAdd(number(0.5), in[2], in[4]), odd_b = hn::NegMulAdd(number(0.5), in[1], in[3]);
  out[0] = hn::Add(hn::NegMulAdd(number(2.5), in[2], in[0]), in[4]);
  out[1] = hn::MulAdd(number(kA), odd_a, even_a);
  out[2] = hn::NegMulAdd(number(kA), odd_a, even_a);
  out[3] = hn::MulAdd(number(kB), odd_b, even_b);
  out[4] = hn::NegMulAdd(number(kB), odd_b, even_b);
  out[5] = hn::Add(hn::NegMulAdd(number(2.5), in[3], in[1]), in[5]);
}

/// kResult m.
HWY_INLINE void result_line(const V (&in)[kIn], V (&out)[kOut]) {
  const V sum_a = hn::Add(in[1], in[2]), difference_a = hn::Mul(number(kA), hn::Sub(in[1], in[2]));
  const V sum_b = hn::Add(in[3], in[4]), difference_b = hn::Mul(number(kB), hn::Sub(in[3], in[4]));
  out[0] = hn::Add(in[0], hn::Add(sum_a, sum_b));
  out[1] = hn::Add(difference_a, difference_b);
  out[2] = hn::MulAdd(number(2), sum_b, hn::Mul(number(0.5), sum_a));
  out[3] = hn::MulAdd(number(2), difference_b, hn::MulAdd(number(0.5), difference_a, in[5]));
}

/// kResult' g: the adjoint.
HWY_INLINE void gradient_line(const V (&in)[kOut], V (&out)[kIn]) {
  const V even_a = hn::MulAdd(number(0.5), in[2], in[0]), odd_a = hn::MulAdd(number(0.5), in[3], in[1]);
  const V even_b = hn::MulAdd(number(2), in[2], in[0]), odd_b = hn::MulAdd(number(2), in[3], in[1]);
  out[0] = in[0];
  out[1] = hn::MulAdd(number(kA), odd_a, even_a);
  out[2] = hn::NegMulAdd(number(kA), odd_a, even_a);
  out[3] = hn::MulAdd(number(kB), odd_b, even_b);
  out[4] = hn::NegMulAdd(number(kB), odd_b, even_b);
  out[5] = in[3];
}

/// kKernel g.
HWY_INLINE void kernel_line(const V (&in)[kTaps], V (&out)[kIn]) {
  const V even_a = hn::Mul(number(-2.0 / 3), hn::MulAdd(number(0.5), in[2], in[0])),
          even_b = hn::Mul(number(1.0 / 6), hn::MulAdd(number(2), in[2], in[0]));
  out[0] = in[0];
  out[1] = hn::MulAdd(number(-2.0 / 3 * kA), in[1], even_a);
  out[2] = hn::NegMulAdd(number(-2.0 / 3 * kA), in[1], even_a);
  out[3] = hn::MulAdd(number(kB / 6), in[1], even_b);
  out[4] = hn::NegMulAdd(number(kB / 6), in[1], even_b);
  out[5] = in[2];
}

/// kKernel' m: the adjoint.
HWY_INLINE void kernel_gradient_line(const V (&in)[kIn], V (&out)[kTaps]) {
  const V sum_a = hn::Mul(number(-2.0 / 3), hn::Add(in[1], in[2])), difference_a = hn::Sub(in[1], in[2]);
  const V sum_b = hn::Mul(number(1.0 / 6), hn::Add(in[3], in[4])), difference_b = hn::Sub(in[3], in[4]);
  out[0] = hn::Add(in[0], hn::Add(sum_a, sum_b));
  out[1] = hn::MulAdd(number(kB / 6), difference_b, hn::Mul(number(-2.0 / 3 * kA), difference_a));
  out[2] = hn::MulAdd(number(2), sum_b, hn::MulAdd(number(0.5), sum_a, in[5]));
}

/// Applies the 1-D transform along both axes of a tile: reads load(i, j) and calls store(i, j, value).
template <class Vector, int64_t kFrom, int64_t kTo, class Load, class Store>
HWY_INLINE void transform_tile(void (*line)(const Vector (&)[kFrom], Vector (&)[kTo]), const Load& load, const Store& store) {
  Vector half[kTo][kFrom];
  for (int64_t j = 0; j < kFrom; ++j) {
    Vector in[kFrom], out[kTo];
    for (int64_t i = 0; i < kFrom; ++i) in[i] = load(i, j);
    line(in, out);
    for (int64_t i = 0; i < kTo; ++i) half[i][j] = out[i];
  }
  for (int64_t i = 0; i < kTo; ++i) {
    Vector out[kTo];
    line(half[i], out);
    for (int64_t j = 0; j < kTo; ++j) store(i, j, out[j]);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::winograd
HWY_AFTER_NAMESPACE();

#endif
