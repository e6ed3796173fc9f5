// The vector code of depthwise_lines.h. Up to 8 pixels of one chunk's lanes are accumulated in registers over all taps; where pixels read
// neighbors, each value is loaded once for all columns of the kernel. One load and one FMA for each tap and vector, or less: the first-
// level cache bounds it.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/depthwise_lines.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/depthwise_lines.h"
#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_DEPTHWISE_LINES_ONCE
#define GALLEY_DEPTHWISE_LINES_ONCE

#include <algorithm>
#include <type_traits>
#include <utility>

namespace galley::depthwise_lines {

constexpr int64_t kTogether = 8;  // pixels whose sums are in registers, at most

/// How many pixels to compute together: lines of 7, 14 and 28 pixels (images of 224) are divided into sevens.
constexpr int64_t together_of(int64_t pixels) {
  return pixels % kTogether != 0 && pixels % (kTogether - 1) == 0 ? kTogether - 1 : kTogether;
}

}  // namespace galley::depthwise_lines

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::depthwise_lines {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using galley::HWY_NAMESPACE::load_floats;
using galley::HWY_NAMESPACE::store_floats;

using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;

/// Lanes [lane, lane + Lanes(d)) of a chunk of which `valid` lanes exist; the others are zero. kWhole: all of these exist.
template <bool kWhole, class T>
HWY_INLINE V load_lanes(D d, const T* chunk, int64_t lane, int64_t valid) {
  if constexpr (kWhole) return load_floats(d, chunk + lane);
#if HWY_MAX_BYTES == 64
  if (valid == kLanes / 2) return hn::ZeroExtendVector(d, load_floats(hn::Half<D>(), chunk));
#endif
  T copy[kLanes] = {};
  for (int64_t i = lane; i < valid; ++i) copy[i - lane] = chunk[i];
  return load_floats(d, copy);
}
template <bool kWhole, class T>
HWY_INLINE void store_lanes(V v, D d, T* chunk, int64_t lane, int64_t valid) {
  if constexpr (kWhole) return store_floats(v, d, chunk + lane);
#if HWY_MAX_BYTES == 64
  if (valid == kLanes / 2) return store_floats(hn::LowerHalf(hn::Half<D>(), v), hn::Half<D>(), chunk);
#endif
  T copy[kLanes];
  store_floats(v, d, copy);
  for (int64_t i = lane; i < valid; ++i) chunk[i] = copy[i - lane];
}
/// body(all lanes exist), as a constant.
template <class Body>
HWY_INLINE void with_lanes(int64_t lane, int64_t valid, const Body& body) {
  if (lane + static_cast<int64_t>(hn::Lanes(D())) <= valid) {
    body(std::true_type());
  } else {
    body(std::false_type());
  }
}

/// NaN passes through.
template <Activation kActivation>
HWY_INLINE V activated(D d, V z) {
  const V zero = hn::Zero(d);
  if constexpr (kActivation == Activation::kRelu) return hn::IfThenElse(hn::Lt(z, zero), zero, z);
  if constexpr (kActivation == Activation::kRelu6) {
    const V six = hn::Set(d, 6), low = hn::IfThenElse(hn::Lt(z, zero), zero, z);
    return hn::IfThenElse(hn::Gt(low, six), six, low);
  }
  if constexpr (kActivation == Activation::kHardswish) {
    const V six = hn::Set(d, 6), t = hn::Add(z, hn::Set(d, 3)), low = hn::IfThenElse(hn::Lt(t, zero), zero, t);
    return hn::Mul(z, hn::Mul(hn::IfThenElse(hn::Gt(low, six), six, low), hn::Set(d, 1.0f / 6)));
  }
  return z;
}

/// The gradient with respect to the argument z of an activation.
template <Activation kActivation>
HWY_INLINE V through(D d, V g, V z) {
  const V zero = hn::Zero(d);
  if constexpr (kActivation == Activation::kRelu) return hn::IfThenElseZero(hn::Gt(z, zero), g);
  if constexpr (kActivation == Activation::kRelu6) return hn::IfThenElseZero(hn::And(hn::Gt(z, zero), hn::Lt(z, hn::Set(d, 6))), g);
  if constexpr (kActivation == Activation::kHardswish) {
    const V inside = hn::MulAdd(z, hn::Set(d, 1.0f / 3), hn::Set(d, 0.5f));
    const V slope = hn::IfThenElse(hn::Le(z, hn::Set(d, -3)), zero, hn::IfThenElse(hn::Ge(z, hn::Set(d, 3)), hn::Set(d, 1), inside));
    return hn::Mul(g, slope);
  }
  return g;
}

/// Floats are of whole chunks.
template <Activation kActivation>
HWY_INLINE void activate_as(const float* z, float* to, int64_t floats) {
  const D d;
  for (int64_t i = 0; i < floats; i += static_cast<int64_t>(hn::Lanes(d)))
    hn::StoreU(activated<kActivation>(d, hn::LoadU(d, z + i)), d, to + i);
}
void activate_line(const float* z, Activation activation, float* to, int64_t floats) {
  switch (activation) {
    case Activation::kRelu: return activate_as<Activation::kRelu>(z, to, floats);
    case Activation::kRelu6: return activate_as<Activation::kRelu6>(z, to, floats);
    case Activation::kHardswish: return activate_as<Activation::kHardswish>(z, to, floats);
    default: return activate_as<Activation::kNone>(z, to, floats);
  }
}

/// Prefetches a value of a later line while the same place of this one is computed. Prefetches of a whole line at once would fill the queue
/// of outstanding loads, and the loads of this line would wait.
template <class T>
HWY_INLINE void prefetch(const T* p) {
  __builtin_prefetch(p, 0, 2);
}

template <bool kNormalize, Activation kActivation, class T>
HWY_INLINE void pack_pixels(const Line<const T>& line, const float* HWY_RESTRICT scales, const float* HWY_RESTRICT shifts,
                            float* HWY_RESTRICT to, int64_t chunk) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), count = line.count, stride = line.stride, ahead = line.ahead;
  for (int64_t c = 0; c < line.channels; c += kLanes) {
    const int64_t valid = std::min(kLanes, line.channels - c);
    for (int64_t lane = 0; lane < kLanes; lane += lanes) {
      const T* HWY_RESTRICT in = line.at + c;
      float* HWY_RESTRICT out = to + c / kLanes * chunk + lane;
      const V scale = kNormalize ? hn::LoadU(d, scales + c + lane) : hn::Zero(d),
              shift = kNormalize ? hn::LoadU(d, shifts + c + lane) : hn::Zero(d);
      with_lanes(lane, valid, [&](auto whole) GALLEY_LOOP {
        const T* HWY_RESTRICT from = in;
        float* HWY_RESTRICT to_pixel = out;
        for (int64_t i = 0; i < count; ++i, from += stride, to_pixel += kLanes) {
          const V v = load_lanes<whole()>(d, from, lane, valid);
          prefetch(from + lane + ahead);
          hn::StoreU(kNormalize ? activated<kActivation>(d, hn::MulAdd(v, scale, shift)) : v, d, to_pixel);
        }
      });
    }
  }
}

template <class T>
void pack_line(const Line<const T>& line, float* to, int64_t chunk) {
  pack_pixels<false, Activation::kNone>(line, nullptr, nullptr, to, chunk);
}
template <class T>
void normalize_line(const Line<const T>& line, const Normalization& norm, float* to, int64_t chunk) {
  switch (norm.activation) {
    case Activation::kRelu: return pack_pixels<true, Activation::kRelu>(line, norm.scale, norm.shift, to, chunk);
    case Activation::kRelu6: return pack_pixels<true, Activation::kRelu6>(line, norm.scale, norm.shift, to, chunk);
    case Activation::kHardswish: return pack_pixels<true, Activation::kHardswish>(line, norm.scale, norm.shift, to, chunk);
    default: return pack_pixels<true, Activation::kNone>(line, norm.scale, norm.shift, to, chunk);
  }
}

#if !HWY_HAVE_SCALABLE
/// Adds the value at kPosition of the pixels that a row reads to the sums of the pixels that use it.
template <size_t kPosition, size_t kPixels, size_t... kColumn>
HWY_INLINE void add_position(V in, const V (&weight)[sizeof...(kColumn)], V (&sum)[kPixels]) {
  const auto add = [&](auto column) GALLEY_LOOP {
    if constexpr (kPosition >= column() && kPosition - column() < kPixels)
      sum[kPosition - column()] = hn::MulAdd(in, weight[column()], sum[kPosition - column()]);
  };
  (add(std::integral_constant<size_t, kColumn>()), ...);
}

/// The sums of kPixel... pixels from `from` on, of one chunk's lanes: to sums[i kLanes]. Sums and weights are unrolled,
/// so that they are registers throughout. kStep: taps.step; where pixels read neighbors, a value is loaded once for all columns.
template <int64_t kStep, size_t... kPixel, size_t... kColumn, size_t... kPosition>
HWY_INLINE void gather_pixels(std::index_sequence<kPixel...>, std::index_sequence<kColumn...>, std::index_sequence<kPosition...>,
                              const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* HWY_RESTRICT sums) {
  const D d;
  constexpr size_t kPixels = sizeof...(kPixel);
  const int64_t in_at = chunk * taps.in_chunk + from * kStep + lane, weight_at = chunk * taps.weight_chunk + lane,
                weight_step = taps.weight_step;
  V sum[] = {((void)kPixel, hn::Zero(d))...};
  for (size_t row = 0; row < static_cast<size_t>(taps.rows); ++row) {
    const float* HWY_RESTRICT in = taps.in[row] + in_at;
    const float* HWY_RESTRICT weights = taps.weight[row] + weight_at;
    const V weight[] = {hn::LoadU(d, weights + static_cast<int64_t>(kColumn) * weight_step)...};
    if constexpr (kStep == kLanes) {
      (add_position<kPosition, kPixels, kColumn...>(hn::LoadU(d, in + kPosition * kLanes), weight, sum), ...);
    } else {
      const auto add = [&](auto column) GALLEY_LOOP {
        ((sum[kPixel] = hn::MulAdd(hn::LoadU(d, in + (static_cast<int64_t>(kPixel) * kStep + static_cast<int64_t>(column()) * kLanes)),
                                   weight[column()], sum[kPixel])),
         ...);
      };
      (add(std::integral_constant<size_t, kColumn>()), ...);
    }
  }
  (hn::StoreU(sum[kPixel], d, sums + kPixel * kLanes), ...);
}

template <int64_t kStep, size_t kPixels, size_t kColumns>
void gather_some(const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* sums) {
  gather_pixels<kStep>(std::make_index_sequence<kPixels>(), std::make_index_sequence<kColumns>(),
                       std::make_index_sequence<kPixels + kColumns - 1>(), taps, chunk, lane, from, sums);
}

template <int64_t kStep, size_t kColumns>
HWY_INLINE void gather_columns(int64_t pixels, const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* sums) {
  static_assert(kTogether == 8);
  if (pixels == 8) return gather_some<kStep, 8, kColumns>(taps, chunk, lane, from, sums);
  if (pixels == 7) return gather_some<kStep, 7, kColumns>(taps, chunk, lane, from, sums);
  int64_t done = 0;
  if ((pixels & 4) != 0) gather_some<kStep, 4, kColumns>(taps, chunk, lane, from, sums), done += 4;
  if ((pixels & 2) != 0) gather_some<kStep, 2, kColumns>(taps, chunk, lane, from + done, sums + done * kLanes), done += 2;
  if ((pixels & 1) != 0) gather_some<kStep, 1, kColumns>(taps, chunk, lane, from + done, sums + done * kLanes);
}
#endif

/// The general case: any number of columns, any step.
HWY_INLINE void gather_plainly(int64_t pixels, const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* sums) {
  const D d;
  for (int64_t i = 0; i < pixels; ++i) {
    V sum = hn::Zero(d);
    for (size_t row = 0; row < static_cast<size_t>(taps.rows); ++row) {
      const float* in = taps.in[row] + chunk * taps.in_chunk + (from + i) * taps.step + lane;
      const float* weight = taps.weight[row] + chunk * taps.weight_chunk + lane;
      for (int64_t k = 0; k < taps.columns; ++k)
        sum = hn::MulAdd(hn::LoadU(d, in + k * kLanes), hn::LoadU(d, weight + k * taps.weight_step), sum);
    }
    hn::StoreU(sum, d, sums + i * kLanes);
  }
}

/// kStep: taps.step, or 0 for any.
template <int64_t kStep>
void gather(int64_t pixels, const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* sums) {
#if !HWY_HAVE_SCALABLE
  if constexpr (kStep != 0) {
    switch (taps.columns) {
      case 1: return gather_columns<kStep, 1>(pixels, taps, chunk, lane, from, sums);
      case 2: return gather_columns<kStep, 2>(pixels, taps, chunk, lane, from, sums);
      case 3: return gather_columns<kStep, 3>(pixels, taps, chunk, lane, from, sums);
      case 4: return gather_columns<kStep, 4>(pixels, taps, chunk, lane, from, sums);
      case 5: return gather_columns<kStep, 5>(pixels, taps, chunk, lane, from, sums);
      case 7: return gather_columns<kStep, 7>(pixels, taps, chunk, lane, from, sums);
      default: break;
    }
  }
#endif
  gather_plainly(pixels, taps, chunk, lane, from, sums);
}

/// A run of pixels in one chunk's lanes, as `Use` gets it.
struct Run {
  int64_t at;                 // place of the first pixel's chunk in the line
  int64_t step, count;        // values from pixel to pixel; pixels
  int64_t pixel, pixel_step;  // of the line, the first one and from one to the next
  int64_t channel;            // of the first lane
  int64_t lane, valid;        // in the chunk; lanes of the chunk that exist
};

/// Gathers the pixels of a line, chunk by chunk, with `classes` lists of taps: pixel i takes list i % classes. Calls use.take(run, sums).
template <int64_t kStep, class T, class Use>
HWY_INLINE void gather_line(const Gathered& g, const Line<T>& line, const Use& use) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D())), count = line.count, classes = g.classes;
  const int64_t together = together_of((count + classes - 1) / classes), block = together * classes;
  HWY_ALIGN float sums[kTogether * kLanes];
  for (int64_t c = 0; c < line.channels; c += kLanes) {
    const int64_t valid = std::min(kLanes, line.channels - c);
    for (int64_t lane = 0; lane < valid; lane += lanes) {
      for (int64_t first = 0; first < count; first += block) {
        for (int64_t own = 0; own < classes; ++own) {
          const int64_t pixels = std::min(together, (count - first - own + classes - 1) / classes);
          if (pixels <= 0) continue;
          gather<kStep>(pixels, g.taps[own], c / kLanes, lane, first / classes, sums);
          use.take({(first + own) * line.stride + c, classes * line.stride, pixels, first + own, classes, c + lane, lane, valid}, sums);
        }
      }
    }
  }
}

template <class T>
struct Store {
  T* HWY_RESTRICT out;
  int64_t prefetched;

  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT sums) const {
    const D d;
    with_lanes(run.lane, run.valid, [&](auto whole) GALLEY_LOOP {
      T* HWY_RESTRICT to = out + run.at;
      for (int64_t i = 0; i < run.count; ++i, to += run.step) {
        prefetch(to + prefetched + run.lane);
        store_lanes<whole()>(hn::LoadU(d, sums + i * kLanes), d, to, run.lane, run.valid);
      }
    });
  }
};

template <class T>
void convolve_line(const Taps& taps, const Line<T>& out) {
  const Store<T> use{out.at, out.ahead};
  switch (taps.step) {
    case kLanes: return gather_line<kLanes>({&taps, 1}, out, use);
    case 2 * kLanes: return gather_line<2 * kLanes>({&taps, 1}, out, use);
    default: return gather_line<0>({&taps, 1}, out, use);
  }
}

template <Activation kActivation, class T>
struct SumGradients {
  const T* x;
  T* to;
  int64_t prefetched;
  const float *mean, *scale, *shift;
  float *sums, *dots;

  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT gathered) const {
    const D d;
    const int64_t c = run.channel;
    const V scales = hn::LoadU(d, scale + c), shifts = hn::LoadU(d, shift + c), means = hn::LoadU(d, mean + c);
    // Two of each: with one, every sum would wait for the one before.
    V sum[] = {hn::LoadU(d, sums + c), hn::Zero(d)}, dot[] = {hn::LoadU(d, dots + c), hn::Zero(d)};
    with_lanes(run.lane, run.valid, [&](auto whole) GALLEY_LOOP {
      const T* in = x + run.at;
      T* out = to + run.at;
      const auto take_pixel = [&](int64_t i, V& own_sum, V& own_dot) GALLEY_LOOP {
        const V v = load_lanes<whole()>(d, in, run.lane, run.valid);
        const V g = through<kActivation>(d, hn::LoadU(d, gathered + i * kLanes), hn::MulAdd(v, scales, shifts));
        prefetch(out + prefetched + run.lane);
        own_sum = hn::Add(own_sum, g);
        own_dot = hn::MulAdd(g, hn::Sub(v, means), own_dot);
        store_lanes<whole()>(g, d, out, run.lane, run.valid);
        in += run.step;
        out += run.step;
      };
      int64_t i = 0;
      for (; i + 1 < run.count; i += 2) {
        take_pixel(i, sum[0], dot[0]);
        take_pixel(i + 1, sum[1], dot[1]);
      }
      if (i < run.count) take_pixel(i, sum[0], dot[0]);
    });
    hn::StoreU(hn::Add(sum[0], sum[1]), d, sums + c);
    hn::StoreU(hn::Add(dot[0], dot[1]), d, dots + c);
  }
};

template <Activation kActivation, class T>
HWY_INLINE void sum_gradients_as(const Gathered& g, const Line<const T>& x, const Normalization& norm, T* to, float* sums, float* dots) {
  gather_line<kLanes>(g, x, SumGradients<kActivation, T>{x.at, to, x.ahead, norm.mean, norm.scale, norm.shift, sums, dots});
}
template <class T>
void sum_gradients(const Gathered& g, const Line<const T>& x, const Normalization& norm, T* to, float* sums, float* dots) {
  switch (norm.activation) {
    case Activation::kRelu: return sum_gradients_as<Activation::kRelu>(g, x, norm, to, sums, dots);
    case Activation::kRelu6: return sum_gradients_as<Activation::kRelu6>(g, x, norm, to, sums, dots);
    case Activation::kHardswish: return sum_gradients_as<Activation::kHardswish>(g, x, norm, to, sums, dots);
    default: return sum_gradients_as<Activation::kNone>(g, x, norm, to, sums, dots);
  }
}

template <Activation kActivation>
struct SumRows {
  float* to;
  PackedArgument of;
  float* sums;

  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT gathered) const {
    const D d;
    V sum[] = {hn::LoadU(d, sums + run.channel), hn::Zero(d)};
    const int64_t z_step = run.pixel_step * kLanes;
    const float* HWY_RESTRICT z = of.z + run.channel / kLanes * of.chunk + run.pixel * kLanes + run.lane;
    float* HWY_RESTRICT out = to + run.at + run.lane;
    const auto take_pixel = [&](int64_t i, V& own) GALLEY_LOOP {
      const V g = through<kActivation>(d, hn::LoadU(d, gathered + i * kLanes), hn::LoadU(d, z + i * z_step));
      own = hn::Add(own, g);
      hn::StoreU(g, d, out + i * run.step);
    };
    int64_t i = 0;
    for (; i + 1 < run.count; i += 2) {
      take_pixel(i, sum[0]);
      take_pixel(i + 1, sum[1]);
    }
    if (i < run.count) take_pixel(i, sum[0]);
    hn::StoreU(hn::Add(sum[0], sum[1]), d, sums + run.channel);
  }
};

template <Activation kActivation>
HWY_INLINE void sum_rows_as(const Gathered& g, const PackedArgument& of, const Line<float>& to, float* sums) {
  gather_line<kLanes>(g, to, SumRows<kActivation>{to.at, of, sums});
}
void sum_rows(const Gathered& g, const PackedArgument& of, Activation activation, const Line<float>& to, float* sums) {
  switch (activation) {
    case Activation::kRelu: return sum_rows_as<Activation::kRelu>(g, of, to, sums);
    case Activation::kRelu6: return sum_rows_as<Activation::kRelu6>(g, of, to, sums);
    case Activation::kHardswish: return sum_rows_as<Activation::kHardswish>(g, of, to, sums);
    default: return sum_rows_as<Activation::kNone>(g, of, to, sums);
  }
}

template <class T>
HWY_INLINE void map_pixels(const Line<const T>& line, T* g, const GradientMap& map) {
  const D d;
  const T* HWY_RESTRICT x = line.at;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), stride = line.stride, ahead = kTogether * stride;
  for (int64_t from = 0; from < line.count; from += kTogether) {
    const int64_t count = std::min(kTogether, line.count - from);
    for (int64_t c = 0; c < line.channels; c += kLanes) {
      const int64_t valid = std::min(kLanes, line.channels - c);
      for (int64_t lane = 0; lane < valid; lane += lanes) {
        const V mean = hn::LoadU(d, map.mean + c + lane), a = hn::LoadU(d, map.a + c + lane), b = hn::LoadU(d, map.b + c + lane),
                offset = hn::LoadU(d, map.offset + c + lane);
        with_lanes(lane, valid, [&](auto whole) GALLEY_LOOP {
          int64_t at = from * stride + c;
          for (int64_t i = 0; i < count; ++i, at += stride) {
            prefetch(x + at + lane + ahead);
            prefetch(g + at + lane + ahead);
            const V centered = hn::Sub(load_lanes<whole()>(d, x + at, lane, valid), mean);
            store_lanes<whole()>(hn::MulAdd(a, load_lanes<whole()>(d, g + at, lane, valid), hn::MulAdd(b, centered, offset)), d, g + at,
                                 lane, valid);
          }
        });
      }
    }
  }
}

/// kRows kernel rows of kColumns taps, from row `first` on, of one chunk.
template <int kColumns, int kRows>
HWY_INLINE void add_rows(const WeightSums& s, int64_t chunk, size_t first) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t lane = 0; lane < kLanes; lane += lanes) {
    const float* HWY_RESTRICT in = s.in + chunk * s.in_chunk + lane;
#if HWY_HAVE_SCALABLE
    for (size_t r = 0; r < kRows; ++r) {
      const float* grad = s.grad[first + r] + chunk * s.grad_chunk + lane;
      for (int64_t k = 0; k < kColumns; ++k) {
        float* to = s.sums[first + r] + chunk * s.sums_chunk + k * kLanes + lane;
        V sum = hn::LoadU(d, to);
        for (int64_t i = 0; i < s.count; ++i)
          sum = hn::MulAdd(hn::LoadU(d, grad + i * kLanes), hn::LoadU(d, in + i * s.step + k * kLanes), sum);
        hn::StoreU(sum, d, to);
      }
    }
#else
    const float* grad[kRows];
    V sum[kRows][kColumns];
    for (size_t r = 0; r < kRows; ++r) {
      grad[r] = s.grad[first + r] + chunk * s.grad_chunk + lane;
      for (int64_t k = 0; k < kColumns; ++k) sum[r][k] = hn::LoadU(d, s.sums[first + r] + chunk * s.sums_chunk + k * kLanes + lane);
    }
    const int64_t step = s.step, count = s.count;
    for (int64_t i = 0; i < count; ++i, in += step) {
      V g[kRows];
      for (size_t r = 0; r < kRows; ++r) g[r] = hn::LoadU(d, grad[r] + i * kLanes);
      for (int64_t k = 0; k < kColumns; ++k) {
        const V x = hn::LoadU(d, in + k * kLanes);
        for (size_t r = 0; r < kRows; ++r) sum[r][k] = hn::MulAdd(g[r], x, sum[r][k]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (int64_t k = 0; k < kColumns; ++k) hn::StoreU(sum[r][k], d, s.sums[first + r] + chunk * s.sums_chunk + k * kLanes + lane);
    }
#endif
  }
}

template <int kColumns>
void add_all_rows(const WeightSums& s) {
  // As many sums as fit the registers together with their operands.
#if HWY_MAX_BYTES >= 64
  constexpr int kMost = kColumns <= 5 ? 3 : 2;
#else
  constexpr int kMost = kColumns <= 3 ? 3 : kColumns <= 5 ? 2 : 1;
#endif
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    int row = 0;
    for (; row + kMost <= s.rows; row += kMost) add_rows<kColumns, kMost>(s, chunk, static_cast<size_t>(row));
    if constexpr (kMost == 3) {
      if (s.rows - row == 2) add_rows<kColumns, 2>(s, chunk, static_cast<size_t>(row)), row += 2;
    }
    for (; row < s.rows; ++row) add_rows<kColumns, 1>(s, chunk, static_cast<size_t>(row));
  }
}

void add_weights(const WeightSums& s) {
  switch (s.columns) {
    case 1: return add_all_rows<1>(s);
    case 2: return add_all_rows<2>(s);
    case 3: return add_all_rows<3>(s);
    case 4: return add_all_rows<4>(s);
    case 5: return add_all_rows<5>(s);
    case 6: return add_all_rows<6>(s);
    default: return add_all_rows<7>(s);
  }
}

void pack_f32(const Line<const float>& line, float* to, int64_t chunk) { pack_line(line, to, chunk); }
void pack_bf16(const Line<const BFloat16>& line, float* to, int64_t chunk) { pack_line(line, to, chunk); }
void normalize_f32(const Line<const float>& line, const Normalization& norm, float* to, int64_t chunk) {
  normalize_line(line, norm, to, chunk);
}
void normalize_bf16(const Line<const BFloat16>& line, const Normalization& norm, float* to, int64_t chunk) {
  normalize_line(line, norm, to, chunk);
}
void convolve_f32(const Taps& taps, const Line<float>& out) { convolve_line(taps, out); }
void convolve_bf16(const Taps& taps, const Line<BFloat16>& out) { convolve_line(taps, out); }
void sums_f32(const Gathered& g, const Line<const float>& x, const Normalization& norm, float* to, float* sum, float* dot) {
  sum_gradients(g, x, norm, to, sum, dot);
}
void sums_bf16(const Gathered& g, const Line<const BFloat16>& x, const Normalization& norm, BFloat16* to, float* sum, float* dot) {
  sum_gradients(g, x, norm, to, sum, dot);
}
void map_f32(const Line<const float>& x, float* g, const GradientMap& map) { map_pixels(x, g, map); }
void map_bf16(const Line<const BFloat16>& x, BFloat16* g, const GradientMap& map) { map_pixels(x, g, map); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::depthwise_lines
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::depthwise_lines {

HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_bf16);
HWY_EXPORT(normalize_f32);
HWY_EXPORT(normalize_bf16);
HWY_EXPORT(convolve_f32);
HWY_EXPORT(convolve_bf16);
HWY_EXPORT(sums_f32);
HWY_EXPORT(sums_bf16);
HWY_EXPORT(map_f32);
HWY_EXPORT(map_bf16);
HWY_EXPORT(sum_rows);
HWY_EXPORT(activate_line);
HWY_EXPORT(add_weights);

void pack(const Line<const float>& line, float* to, int64_t chunk) { HWY_DYNAMIC_DISPATCH(pack_f32)(line, to, chunk); }
void pack(const Line<const BFloat16>& line, float* to, int64_t chunk) { HWY_DYNAMIC_DISPATCH(pack_bf16)(line, to, chunk); }
void pack(const Line<const float>& line, const Normalization& norm, float* to, int64_t chunk) {
  HWY_DYNAMIC_DISPATCH(normalize_f32)(line, norm, to, chunk);
}
void pack(const Line<const BFloat16>& line, const Normalization& norm, float* to, int64_t chunk) {
  HWY_DYNAMIC_DISPATCH(normalize_bf16)(line, norm, to, chunk);
}
void convolve(const Taps& taps, const Line<float>& out) { HWY_DYNAMIC_DISPATCH(convolve_f32)(taps, out); }
void convolve(const Taps& taps, const Line<BFloat16>& out) { HWY_DYNAMIC_DISPATCH(convolve_bf16)(taps, out); }
void gradient_sums(const Gathered& g, const Line<const float>& x, const Normalization& norm, float* to, float* sum, float* dot) {
  HWY_DYNAMIC_DISPATCH(sums_f32)(g, x, norm, to, sum, dot);
}
void gradient_sums(const Gathered& g, const Line<const BFloat16>& x, const Normalization& norm, BFloat16* to, float* sum, float* dot) {
  HWY_DYNAMIC_DISPATCH(sums_bf16)(g, x, norm, to, sum, dot);
}
void map_gradient(const Line<const float>& x, float* g, const GradientMap& map) { HWY_DYNAMIC_DISPATCH(map_f32)(x, g, map); }
void map_gradient(const Line<const BFloat16>& x, BFloat16* g, const GradientMap& map) { HWY_DYNAMIC_DISPATCH(map_bf16)(x, g, map); }
void gradient_sums(const Gathered& g, const PackedArgument& of, Activation activation, const Line<float>& to, float* sum) {
  HWY_DYNAMIC_DISPATCH(sum_rows)(g, of, activation, to, sum);
}
void activate(const float* z, Activation activation, float* to, int64_t floats) {
  HWY_DYNAMIC_DISPATCH(activate_line)(z, activation, to, floats);
}
void add_weight_sums(const WeightSums& sums) { HWY_DYNAMIC_DISPATCH(add_weights)(sums); }

}  // namespace galley::depthwise_lines

#endif  // HWY_ONCE
