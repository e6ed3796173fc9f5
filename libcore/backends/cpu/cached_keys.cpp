// Attention of one query with a cache: keys and values are read once, and their bytes bound the time. The keys of all heads of a row are
// read one after the other. The maximum and the sum of each head are kept as in flash attention.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/cached_keys.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/floats-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_CACHED_KEYS_ONCE
#define GALLEY_CACHED_KEYS_ONCE

#include <algorithm>
#include <cmath>

#include "libcore/backends/cpu/cached_keys.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::cached_keys {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
// Never called: the kernels decline.
template <class K>
void run_range(const Range<K>&) {}
void store_bfloats(const float*, int64_t, int64_t, BFloat16*) {}
void store_codes(const float*, int64_t, int64_t, int8_t*, float*) {}
#else

using galley::HWY_NAMESPACE::each;
using galley::HWY_NAMESPACE::store_floats;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

HWY_INLINE V exp(V x) { return elementwise::HWY_NAMESPACE::exp(elementwise::HWY_NAMESPACE::Floats(x)).v; }

template <class K>
HWY_INLINE V load(const K* from) {
  return galley::HWY_NAMESPACE::load_floats(D(), from);
}
HWY_INLINE V load(const int8_t* from) {
  const hn::Rebind<int32_t, D> whole;
  const hn::Rebind<int8_t, D> code;
  return hn::ConvertTo(D(), hn::PromoteTo(whole, hn::LoadU(code, from)));
}

/// The scores of a key for kHeads query heads.
template <int kHeads, class K>
HWY_INLINE void dots(const float* HWY_RESTRICT q, const K* HWY_RESTRICT k, int64_t width, float factor, float* scores) {
  const D d;
  V even[kHeads], odd[kHeads];
  each<kHeads>([&](auto h) GALLEY_LOOP { even[h] = odd[h] = hn::Zero(d); });
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const V a = load(k + i), b = load(k + i + kLanes);
    each<kHeads>([&](auto h) GALLEY_LOOP {
      even[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i), a, even[h]);
      odd[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i + kLanes), b, odd[h]);
    });
  }
  if (i < width) {
    const V a = load(k + i);
    each<kHeads>([&](auto h) GALLEY_LOOP { even[h] = hn::MulAdd(hn::LoadU(d, q + h * width + i), a, even[h]); });
  }
  each<kHeads>([&](auto h) GALLEY_LOOP { scores[h * kBlock] = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[h], odd[h]))) * factor; });
}

/// The scores of rows [row, row + count); kNever for others up to kBlock.
template <class K>
HWY_INLINE void score(const Range<K>& r, int64_t row, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const K* keys = r.k + (row + j) * r.step;
    for (int64_t g = 0; g * r.group < r.heads; ++g) {
      const float factor = r.k_scales == nullptr ? 1.0f : r.k_scales[(row + j) * r.scale_step + g];
      const float* query = r.query + g * r.group * r.width;
      float* scores = r.scores + g * r.group * kBlock + j;
      int64_t h = 0;
      for (; h + 4 <= r.group; h += 4) dots<4>(query + h * r.width, keys + g * r.width, r.width, factor, scores + h * kBlock);
      for (; h < r.group; ++h) dots<1>(query + h * r.width, keys + g * r.width, r.width, factor, scores + h * kBlock);
    }
  }
  for (int64_t h = 0; h < r.heads; ++h) std::fill(r.scores + h * kBlock + count, r.scores + (h + 1) * kBlock, kNever);
}

/// Scores become exponentials; maximum, total and sum follow a new maximum.
template <class K>
HWY_INLINE void weigh(const Range<K>& r) {
  const D d;
  for (int64_t h = 0; h < r.heads; ++h) {
    float* scores = r.scores + h * kBlock;
    V top = hn::LoadU(d, scores);
    for (int64_t j = kLanes; j < kBlock; j += kLanes) top = hn::Max(top, hn::LoadU(d, scores + j));
    const float before = r.largest[h], largest = std::max(before, hn::GetLane(hn::MaxOfLanes(d, top)));
    const V shift = hn::Set(d, largest == kNever ? 0.0f : largest);
    V total = hn::Zero(d);
    for (int64_t j = 0; j < kBlock; j += kLanes) {
      const V p = exp(hn::Sub(hn::LoadU(d, scores + j), shift));
      hn::StoreU(p, d, scores + j);
      total = hn::Add(total, p);
    }
    const float factor = before == largest ? 1.0f : std::exp(before - largest);
    r.largest[h] = largest;
    r.total[h] = r.total[h] * factor + hn::GetLane(hn::SumOfLanes(d, total));
    if (factor == 1.0f) continue;  // also of heads without a key yet
    float* sum = r.sum + h * r.width;
    for (int64_t c = 0; c < r.width; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, sum + c), hn::Set(d, factor)), d, sum + c);
  }
}

/// Adds the values of kRows rows from `row` on, whose scores are those from `j` on.
template <int kRows, class K>
HWY_INLINE void add_values(const Range<K>& r, int64_t row, int64_t j) {
  const D d;
  for (int64_t g = 0; g * r.group < r.heads; ++g) {
    const K* values = r.v + row * r.step + g * r.width;
    float factors[kRows];
    for (int n = 0; n < kRows; ++n) factors[n] = r.v_scales == nullptr ? 1.0f : r.v_scales[(row + n) * r.scale_step + g];
    for (int64_t h = g * r.group; h < (g + 1) * r.group; ++h) {
      V p[kRows];
      each<kRows>([&](auto n) GALLEY_LOOP { p[n] = hn::Set(d, r.scores[h * kBlock + j + n] * factors[n]); });
      float* sum = r.sum + h * r.width;
      for (int64_t c = 0; c < r.width; c += kLanes) {
        V x = hn::LoadU(d, sum + c);
        each<kRows>([&](auto n) GALLEY_LOOP { x = hn::MulAdd(p[n], load(values + n * r.step + c), x); });
        hn::StoreU(x, d, sum + c);
      }
    }
  }
}

template <class K>
void run_range(const Range<K>& r) {
  const D d;
  for (int64_t i = 0; i < r.heads * r.width; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, r.q + i), hn::Set(d, r.scale)), d, r.query + i);
  std::fill_n(r.largest, r.heads, kNever);
  std::fill_n(r.total, r.heads, 0.0f);
  std::fill_n(r.sum, r.heads * r.width, 0.0f);
  for (const Part& part : r.parts) {
    for (int64_t row = part.first; row < part.last; row += kBlock) {
      const int64_t count = std::min(kBlock, part.last - row);
      score(r, row, count);
      weigh(r);
      int64_t j = 0;
      for (; j + 4 <= count; j += 4) add_values<4>(r, row + j, j);
      for (; j < count; ++j) add_values<1>(r, row + j, j);
    }
  }
}

void store_bfloats(const float* from, int64_t heads, int64_t width, BFloat16* to) {
  const D d;
  const int64_t count = heads * width;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_floats(hn::LoadU(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = from[i];
}

void store_codes(const float* from, int64_t heads, int64_t width, int8_t* to, float* scales) {
  const D d;
  const hn::Rebind<int8_t, D> code;
  for (int64_t h = 0; h < heads; ++h, from += width, to += width) {
    V top = hn::Zero(d), poison = hn::Zero(d);  // poison: NaN if a value is not finite
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const V x = hn::LoadU(d, from + i);
      top = hn::Max(top, hn::Abs(x));
      poison = hn::MulAdd(x, hn::Zero(d), poison);
    }
    float largest = hn::GetLane(hn::MaxOfLanes(d, top)), bad = hn::GetLane(hn::SumOfLanes(d, poison));
    for (; i < width; ++i) largest = std::max(largest, std::abs(from[i])), bad += from[i] * 0.0f;
    const bool finite = bad == 0;
    scales[h] = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
    if (!finite || largest == 0) {
      std::fill_n(to, width, int8_t{0});
      continue;
    }
    const float inverse = 127.0f / largest;
    for (i = 0; i + kLanes <= width; i += kLanes)
      hn::StoreU(hn::DemoteTo(code, hn::NearestInt(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse)))), code, to + i);
    for (; i < width; ++i) to[i] = static_cast<int8_t>(std::nearbyint(from[i] * inverse));
  }
}

#endif  // GALLEY_WIDE_TARGET

void range_floats(const Range<float>& r) { run_range(r); }
void range_bfloats(const Range<BFloat16>& r) { run_range(r); }
void range_codes(const Range<int8_t>& r) { run_range(r); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::cached_keys
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::cached_keys {
HWY_EXPORT(range_floats);
HWY_EXPORT(range_bfloats);
HWY_EXPORT(range_codes);
HWY_EXPORT(store_bfloats);
HWY_EXPORT(store_codes);
void run(const Range<float>& r) { HWY_DYNAMIC_DISPATCH(range_floats)(r); }
void run(const Range<BFloat16>& r) { HWY_DYNAMIC_DISPATCH(range_bfloats)(r); }
void run(const Range<int8_t>& r) { HWY_DYNAMIC_DISPATCH(range_codes)(r); }
void store(const float* from, int64_t heads, int64_t width, BFloat16* to) { HWY_DYNAMIC_DISPATCH(store_bfloats)(from, heads, width, to); }
void store(const float* from, int64_t heads, int64_t width, int8_t* to, float* scales) {
  HWY_DYNAMIC_DISPATCH(store_codes)(from, heads, width, to, scales);
}
}  // namespace galley::cached_keys

#endif  // HWY_ONCE
