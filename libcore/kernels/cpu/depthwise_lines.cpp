// The vector code of depthwise_lines.h, compiled for each instruction set (Google Highway) and chosen at run time.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/kernels/cpu/depthwise_lines.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "libcore/kernels/cpu/bfloat16-inl.h"
#include "libcore/kernels/cpu/depthwise_lines.h"

#ifndef GALLEY_DEPTHWISE_LINES_ONCE
#define GALLEY_DEPTHWISE_LINES_ONCE

#include <algorithm>

namespace galley::depthwise_lines {

constexpr int64_t kTogether = 8;    // pixels whose sums are in registers
constexpr int64_t kAhead = 4096;  // bytes: lines follow each other in memory

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

/// Lanes [lane, lane + Lanes(d)) of a chunk of which `valid` lanes exist; zeros behind them.
template <class T>
HWY_INLINE V load_lanes(D d, const T* chunk, int64_t lane, int64_t valid) {
  if (lane + static_cast<int64_t>(hn::Lanes(d)) <= valid) return load_floats(d, chunk + lane);
#if HWY_MAX_BYTES == 64
  if (valid == kLanes / 2) return hn::ZeroExtendVector(d, load_floats(hn::Half<D>(), chunk));
#endif
  T copy[kLanes] = {};
  for (int64_t i = lane; i < valid; ++i) copy[i - lane] = chunk[i];
  return load_floats(d, copy);
}
template <class T>
HWY_INLINE void store_lanes(V v, D d, T* chunk, int64_t lane, int64_t valid) {
  if (lane + static_cast<int64_t>(hn::Lanes(d)) <= valid) return store_floats(v, d, chunk + lane);
#if HWY_MAX_BYTES == 64
  if (valid == kLanes / 2) return store_floats(hn::LowerHalf(hn::Half<D>(), v), hn::Half<D>(), chunk);
#endif
  T copy[kLanes];
  store_floats(v, d, copy);
  for (int64_t i = lane; i < valid; ++i) chunk[i] = copy[i - lane];
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

/// The gradient behind an activation whose argument is z.
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

/// Asks for the values behind [p, p + count) that come next, kAhead bytes away at least.
template <class T>
HWY_INLINE void ask_ahead(const T* p, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  const char* at = reinterpret_cast<const char*>(p) + std::max(kAhead, bytes);
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(at + i);
}

template <bool kNormalize, Activation kActivation, class T>
HWY_INLINE void pack_pixels(const T* HWY_RESTRICT line, int64_t count, int64_t channels, const float* HWY_RESTRICT scales, const float* HWY_RESTRICT shifts,
                            float* HWY_RESTRICT to, int64_t chunk) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t from = 0; from < count; from += kTogether) {
    const int64_t pixels = std::min(kTogether, count - from);
    ask_ahead(line + from * channels, pixels * channels);
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t valid = std::min(kLanes, channels - c);
      for (int64_t lane = 0; lane < kLanes; lane += lanes) {
        const T* in = line + from * channels + c;
        float* out = to + c / kLanes * chunk + from * kLanes + lane;
        const V scale = kNormalize ? hn::LoadU(d, scales + c + lane) : hn::Zero(d), shift = kNormalize ? hn::LoadU(d, shifts + c + lane) : hn::Zero(d);
        for (int64_t i = 0; i < pixels; ++i, in += channels, out += kLanes) {
          const V v = load_lanes(d, in, lane, valid);
          hn::StoreU(kNormalize ? activated<kActivation>(d, hn::MulAdd(v, scale, shift)) : v, d, out);
        }
      }
    }
  }
}

template <class T>
void pack_line(const T* line, int64_t count, int64_t channels, float* to, int64_t chunk) {
  pack_pixels<false, Activation::kNone>(line, count, channels, nullptr, nullptr, to, chunk);
}
template <class T>
void normalize_line(const T* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk) {
  switch (how.activation) {
    case Activation::kRelu: return pack_pixels<true, Activation::kRelu>(line, count, channels, how.scale, how.shift, to, chunk);
    case Activation::kRelu6: return pack_pixels<true, Activation::kRelu6>(line, count, channels, how.scale, how.shift, to, chunk);
    case Activation::kHardswish: return pack_pixels<true, Activation::kHardswish>(line, count, channels, how.scale, how.shift, to, chunk);
    default: return pack_pixels<true, Activation::kNone>(line, count, channels, how.scale, how.shift, to, chunk);
  }
}

/// The sums of kPixels pixels from `from` on, of one chunk's lanes: to sums[i kLanes].
template <int kPixels>
HWY_INLINE void gather(const Taps& taps, int64_t chunk, int64_t lane, int64_t from, float* HWY_RESTRICT sums) {
  const D d;
  const int64_t in_at = chunk * taps.in_chunk + from * taps.step + lane, weight_at = chunk * taps.weight_chunk + lane, step = taps.step;
  const auto count = static_cast<size_t>(taps.count);
#if HWY_HAVE_SCALABLE
  for (int64_t i = 0; i < kPixels; ++i) {  // no arrays of vectors
    V sum = hn::Zero(d);
    for (size_t t = 0; t < count; ++t) sum = hn::MulAdd(hn::LoadU(d, taps.in[t] + in_at + i * step), hn::LoadU(d, taps.weight[t] + weight_at), sum);
    hn::StoreU(sum, d, sums + i * kLanes);
  }
#else
  V sum[kPixels];
  for (V& s : sum) s = hn::Zero(d);
  for (size_t t = 0; t < count; ++t) {
    const float* HWY_RESTRICT in = taps.in[t] + in_at;
    const V weight = hn::LoadU(d, taps.weight[t] + weight_at);
    for (int64_t i = 0; i < kPixels; ++i) sum[i] = hn::MulAdd(hn::LoadU(d, in + i * step), weight, sum[i]);
  }
  for (int64_t i = 0; i < kPixels; ++i) hn::StoreU(sum[i], d, sums + i * kLanes);
#endif
}

/// A run of pixels in one chunk's lanes, as `Use` gets it.
struct Run {
  int64_t at;           // place of the first pixel's chunk in the line
  int64_t step, count;  // values from pixel to pixel; pixels
  int64_t channel;      // of the first lane
  int64_t lane, valid;  // in the chunk; lanes of the chunk that exist
};

/// Pixels of a line by `classes` lists of taps in turn (pixel 0 by the first, 1 by the second, ...), kTogether of each at a time: ahead(at, count) of
/// the values of all of them, then use(run, sums) chunk by chunk.
template <class Use>
HWY_INLINE void gather_line(const Taps* taps, int64_t classes, int64_t count, int64_t channels, const Use& use) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D())), block = kTogether * classes;
  HWY_ALIGN float sums[kTogether * kLanes];
  for (int64_t first = 0; first < count; first += block) {
    use.ahead(first * channels, std::min(block, count - first) * channels);
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t valid = std::min(kLanes, channels - c);
      for (int64_t lane = 0; lane < valid; lane += lanes) {
        for (int64_t own = 0; own < classes; ++own) {
          const int64_t pixels = std::min(kTogether, (count - first - own + classes - 1) / classes), from = first / classes;
          if (pixels == kTogether) {
            gather<kTogether>(taps[own], c / kLanes, lane, from, sums);
          } else {
            for (int64_t i = 0; i < pixels; ++i) gather<1>(taps[own], c / kLanes, lane, from + i, sums + i * kLanes);
          }
          if (pixels > 0) use.take({(first + own) * channels + c, classes * channels, pixels, c + lane, lane, valid}, sums);
        }
      }
    }
  }
}

template <class T>
struct Store {
  T* HWY_RESTRICT out;

  HWY_INLINE void ahead(int64_t at, int64_t count) const { ask_ahead(out + at, count); }
  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT sums) const {
    const D d;
    for (int64_t i = 0; i < run.count; ++i) store_lanes(hn::LoadU(d, sums + i * kLanes), d, out + run.at + i * run.step, run.lane, run.valid);
  }
};

template <class T>
void convolve_line(const Taps& taps, T* out, int64_t count, int64_t channels) {
  const Store<T> use{out};
  gather_line(&taps, 1, count, channels, use);
}

template <Activation kActivation, class T>
struct SumGradients {
  const T* HWY_RESTRICT x;
  const float *mean, *scale, *shift;
  float *sums, *dots;

  HWY_INLINE void ahead(int64_t, int64_t) const {}
  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT gathered) const {
    const D d;
    const int64_t c = run.channel;
    const V scales = hn::LoadU(d, scale + c), shifts = hn::LoadU(d, shift + c), means = hn::LoadU(d, mean + c);
    V sum = hn::LoadU(d, sums + c), dot = hn::LoadU(d, dots + c);
    for (int64_t i = 0; i < run.count; ++i) {
      const V v = load_lanes(d, x + run.at + i * run.step, run.lane, run.valid);
      const V g = through<kActivation>(d, hn::LoadU(d, gathered + i * kLanes), hn::MulAdd(v, scales, shifts));
      sum = hn::Add(sum, g);
      dot = hn::MulAdd(g, hn::Sub(v, means), dot);
    }
    hn::StoreU(sum, d, sums + c);
    hn::StoreU(dot, d, dots + c);
  }
};

template <Activation kActivation, class T>
struct MapGradients {
  const T* HWY_RESTRICT x;
  T* HWY_RESTRICT dx;
  const float *mean, *scale, *shift;
  GradientMap map;

  HWY_INLINE void ahead(int64_t at, int64_t count) const {
    ask_ahead(x + at, count);
    ask_ahead(dx + at, count);
  }
  HWY_INLINE void take(const Run& run, const float* HWY_RESTRICT gathered) const {
    const D d;
    const int64_t c = run.channel;
    const V scales = hn::LoadU(d, scale + c), shifts = hn::LoadU(d, shift + c), means = hn::LoadU(d, mean + c);
    const V a = hn::LoadU(d, map.a + c), b = hn::LoadU(d, map.b + c), offset = hn::LoadU(d, map.offset + c);
    for (int64_t i = 0; i < run.count; ++i) {
      const V v = load_lanes(d, x + run.at + i * run.step, run.lane, run.valid);
      const V g = through<kActivation>(d, hn::LoadU(d, gathered + i * kLanes), hn::MulAdd(v, scales, shifts));
      store_lanes(hn::MulAdd(a, g, hn::MulAdd(b, hn::Sub(v, means), offset)), d, dx + run.at + i * run.step, run.lane, run.valid);
    }
  }
};

template <Activation kActivation, class T>
HWY_INLINE void sum_gradients_as(const GradientLine<T>& line, const Normalization& how, float* sums, float* dots) {
  const SumGradients<kActivation, T> use{line.x, how.mean, how.scale, how.shift, sums, dots};
  gather_line(line.taps, line.classes, line.count, line.channels, use);
}
template <Activation kActivation, class T>
HWY_INLINE void map_gradients_as(const GradientLine<T>& line, const Normalization& how, const GradientMap& map) {
  const MapGradients<kActivation, T> use{line.x, line.dx, how.mean, how.scale, how.shift, map};
  gather_line(line.taps, line.classes, line.count, line.channels, use);
}

template <class T>
void sum_gradients(const GradientLine<T>& line, const Normalization& how, float* sums, float* dots) {
  switch (how.activation) {
    case Activation::kRelu: return sum_gradients_as<Activation::kRelu>(line, how, sums, dots);
    case Activation::kRelu6: return sum_gradients_as<Activation::kRelu6>(line, how, sums, dots);
    case Activation::kHardswish: return sum_gradients_as<Activation::kHardswish>(line, how, sums, dots);
    default: return sum_gradients_as<Activation::kNone>(line, how, sums, dots);
  }
}
template <class T>
void map_gradients(const GradientLine<T>& line, const Normalization& how, const GradientMap& map) {
  switch (how.activation) {
    case Activation::kRelu: return map_gradients_as<Activation::kRelu>(line, how, map);
    case Activation::kRelu6: return map_gradients_as<Activation::kRelu6>(line, how, map);
    case Activation::kHardswish: return map_gradients_as<Activation::kHardswish>(line, how, map);
    default: return map_gradients_as<Activation::kNone>(line, how, map);
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
        for (int64_t i = 0; i < s.count; ++i) sum = hn::MulAdd(hn::LoadU(d, grad + i * kLanes), hn::LoadU(d, in + i * s.step + k * kLanes), sum);
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
  // As many sums as the registers hold beside what they read.
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

void pack_f32(const float* line, int64_t count, int64_t channels, float* to, int64_t chunk) { pack_line(line, count, channels, to, chunk); }
void pack_bf16(const BFloat16* line, int64_t count, int64_t channels, float* to, int64_t chunk) { pack_line(line, count, channels, to, chunk); }
void normalize_f32(const float* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk) { normalize_line(line, count, channels, how, to, chunk); }
void normalize_bf16(const BFloat16* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk) { normalize_line(line, count, channels, how, to, chunk); }
void convolve_f32(const Taps& taps, float* out, int64_t count, int64_t channels) { convolve_line(taps, out, count, channels); }
void convolve_bf16(const Taps& taps, BFloat16* out, int64_t count, int64_t channels) { convolve_line(taps, out, count, channels); }
void sums_f32(const GradientLine<float>& line, const Normalization& how, float* sum, float* dot) { sum_gradients(line, how, sum, dot); }
void sums_bf16(const GradientLine<BFloat16>& line, const Normalization& how, float* sum, float* dot) { sum_gradients(line, how, sum, dot); }
void gradient_f32(const GradientLine<float>& line, const Normalization& how, const GradientMap& map) { map_gradients(line, how, map); }
void gradient_bf16(const GradientLine<BFloat16>& line, const Normalization& how, const GradientMap& map) { map_gradients(line, how, map); }

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
HWY_EXPORT(gradient_f32);
HWY_EXPORT(gradient_bf16);
HWY_EXPORT(add_weights);

void pack(const float* line, int64_t count, int64_t channels, float* to, int64_t chunk) { HWY_DYNAMIC_DISPATCH(pack_f32)(line, count, channels, to, chunk); }
void pack(const BFloat16* line, int64_t count, int64_t channels, float* to, int64_t chunk) { HWY_DYNAMIC_DISPATCH(pack_bf16)(line, count, channels, to, chunk); }
void pack(const float* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk) {
  HWY_DYNAMIC_DISPATCH(normalize_f32)(line, count, channels, how, to, chunk);
}
void pack(const BFloat16* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk) {
  HWY_DYNAMIC_DISPATCH(normalize_bf16)(line, count, channels, how, to, chunk);
}
void convolve(const Taps& taps, float* out, int64_t count, int64_t channels) { HWY_DYNAMIC_DISPATCH(convolve_f32)(taps, out, count, channels); }
void convolve(const Taps& taps, BFloat16* out, int64_t count, int64_t channels) { HWY_DYNAMIC_DISPATCH(convolve_bf16)(taps, out, count, channels); }
void gradient_sums(const GradientLine<float>& line, const Normalization& how, float* sum, float* dot) {
  HWY_DYNAMIC_DISPATCH(sums_f32)(line, how, sum, dot);
}
void gradient_sums(const GradientLine<BFloat16>& line, const Normalization& how, float* sum, float* dot) {
  HWY_DYNAMIC_DISPATCH(sums_bf16)(line, how, sum, dot);
}
void gradient(const GradientLine<float>& line, const Normalization& how, const GradientMap& map) {
  HWY_DYNAMIC_DISPATCH(gradient_f32)(line, how, map);
}
void gradient(const GradientLine<BFloat16>& line, const Normalization& how, const GradientMap& map) {
  HWY_DYNAMIC_DISPATCH(gradient_bf16)(line, how, map);
}
void add_weight_sums(const WeightSums& sums) { HWY_DYNAMIC_DISPATCH(add_weights)(sums); }

}  // namespace galley::depthwise_lines

#endif  // HWY_ONCE
