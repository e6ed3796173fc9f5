// The vector code of quantized_winograd.h. Transformed values of images and kernels are multiplied in pairs (vpmaddwd); the rest is 32-bit
// arithmetic that may wrap.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_winograd_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_register_tile-inl.h"
#include "libcore/backends/cpu/winograd_transform-inl.h"

#ifndef GALLEY_QUANTIZED_WINOGRAD_TILES_ONCE
#define GALLEY_QUANTIZED_WINOGRAD_TILES_ONCE

#include <algorithm>
#include <array>
#include <utility>

#include "libcore/backends/cpu/quantized_winograd.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {

#if GALLEY_WIDE_TARGET

namespace lines = winograd::HWY_NAMESPACE;
using winograd::kIn, winograd::kOut, winograd::kPositions;

using Words = hn::CappedTag<int16_t, 16>;
using VW = hn::Vec<Words>;
constexpr int64_t kPair = 2 * kBlock;  // transformed weights of a block of outputs and a pair of channels

/// kWholeImage d.
HWY_INLINE void image_line(const VW (&d)[kIn], VW (&out)[kIn]) {
  const VW even = hn::Sub(d[4], d[2]), odd = hn::Sub(d[3], d[1]), twice = hn::Add(odd, odd);
  const VW even4 = hn::Sub(d[4], hn::ShiftLeft<2>(d[2])), odd4 = hn::Sub(d[3], hn::ShiftLeft<2>(d[1]));
  out[0] = hn::Add(hn::ShiftLeft<2>(hn::Sub(d[0], d[2])), even);
  out[1] = hn::Add(even4, odd4);
  out[2] = hn::Sub(even4, odd4);
  out[3] = hn::Add(even, twice);
  out[4] = hn::Sub(even, twice);
  out[5] = hn::Sub(hn::Sub(d[5], d[3]), hn::ShiftLeft<2>(odd));
}

/// kWholeResult m.
HWY_INLINE void result_line(const V32 (&m)[kIn], V32 (&out)[kOut]) {
  const V32 sum1 = hn::Add(m[1], m[2]), difference1 = hn::Sub(m[1], m[2]);
  const V32 sum2 = hn::Add(m[3], m[4]), difference2 = hn::Sub(m[3], m[4]);
  out[0] = hn::Add(m[0], hn::Sub(sum2, hn::ShiftLeft<2>(sum1)));
  out[1] = hn::Sub(difference2, hn::Add(difference1, difference1));
  out[2] = hn::Sub(sum2, sum1);
  out[3] = hn::Add(hn::Sub(hn::Add(difference2, difference2), difference1), m[5]);
}

void bytes_tile(const uint8_t* HWY_RESTRICT x, winograd::Steps step, uint8_t turn, int64_t channels, int16_t* HWY_RESTRICT to,
                int64_t position) {
  const Words d;
  const hn::Rebind<uint8_t, Words> bytes;
  const hn::RebindToSigned<decltype(bytes)> values;
  const auto turned = hn::Set(bytes, turn);
  for (int64_t c = 0; c < channels; c += static_cast<int64_t>(hn::MaxLanes(d))) {
    lines::transform_tile(
        image_line,
        [&](int64_t i, int64_t j) HWY_ATTR {
          return hn::PromoteTo(d, hn::BitCast(values, hn::Xor(hn::LoadU(bytes, x + i * step.row + j * step.column + c), turned)));
        },
        [&](int64_t i, int64_t j, VW value) HWY_ATTR { hn::StoreU(value, d, to + (i * kIn + j) * position + c); });
  }
}

/// sums[row][kStep] of rows of an image's values; `block_step` elements from a block of weights to the next. kPrefetch: prefetches the
/// weights `ahead` elements further on, which may come from memory.
template <int kRows, int kWide, bool kPrefetch>
HWY_NOINLINE void tile_pairs(const int16_t* a, const int32_t* at, const int16_t* HWY_RESTRICT w, int64_t block_step, int64_t ahead,
                             int64_t pairs, int32_t* HWY_RESTRICT sums) {
  Tile<PairProducts, int16_t, kRows, kWide> tile;
  tile.begin(at, at);
  constexpr bool kWhole = kLanes == static_cast<int>(kBlock);  // a vector is a block
  const int16_t* x = a + *at;
  for (const int16_t* end = x + 2 * pairs; x != end; x += 2) {
    Vectors<D16, kWide> weights;
    load(weights, w, kWhole ? block_step : 2 * kLanes);
    if constexpr (kPrefetch) {
      for (int block = 0; block < (kWide * kLanes + static_cast<int>(kBlock) - 1) / static_cast<int>(kBlock); ++block)
        __builtin_prefetch(w + block * block_step + ahead, 0, 2);
    }
    w += kPair;
    tile.add(x, weights);
  }
  tile.store(sums);
}

using PairsTile = void (*)(const int16_t*, const int32_t*, const int16_t*, int64_t, int64_t, int64_t, int32_t*);
template <int kWide, bool kPrefetch, int... kRow>
constexpr std::array<PairsTile, sizeof...(kRow)> pairs_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_pairs<kRow + 1, kWide, kPrefetch>...};
}
using Rows = std::make_integer_sequence<int, kMostRows>;
/// Indexed by [prefetch][rows - 1].
template <int kWide>
constexpr std::array<PairsTile, kMostRows> kPairsTiles[2] = {pairs_tiles<kWide, false>(Rows()), pairs_tiles<kWide, true>(Rows())};

/// Transforms the sums of tiles at all positions to results, divides them by their scales and adds them to `starts`, or to the results of
/// other channels (nullptr).
template <int kWide>
void add_results(const WinogradStep& s, const int32_t* starts) {
  constexpr int kShift[kOut] = {3, 2, 1, 1};  // kWholeScale is 3 times these powers of two
  const D32 d;
  const V32 ninth = hn::Set(d, 0x38E38E39);  // times 9 is 1 modulo 2^32
  for (int64_t tile = 0; tile < s.tiles; ++tile) {
    for (int64_t lane = 0; lane < kWide * kLanes; lane += kLanes) {
      const int32_t* from = s.sums + tile * kStep + lane;
      int32_t* to = s.results + tile * kOut * kStep + lane;
      lines::transform_tile(
          result_line, [&](int64_t i, int64_t j) HWY_ATTR { return hn::Load(d, from + (i * kIn + j) * s.sum_position); },
          [&](int64_t i, int64_t j, V32 value) HWY_ATTR {
            int32_t* at = to + (i * s.tiles * kOut + j) * kStep;
            value = hn::ShiftRightSame(hn::Mul(value, ninth), kShift[i] + kShift[j]);
            hn::Store(hn::Add(value, hn::Load(d, starts == nullptr ? at : starts + lane)), d, at);
          });
    }
  }
}

/// The contribution of `off` to a sum: off times the sum of the kernel's taps, which the transform holds at the second row and column.
template <int kWide>
void offsets(const WinogradStep& s, const int16_t* weights, int64_t block_step, int64_t pairs, int32_t* starts) {
  const int16_t* w = weights + (kIn + 1) * pairs * kPair;
  Vectors<D32, kWide> sums;
  set_zero(sums);
  const auto ones = hn::Set(D16(), 1);
  for (int64_t pair = 0; pair < pairs && s.off != 0; ++pair, w += kPair) {
    Vectors<D16, kWide> each;
    load(each, w, kLanes == static_cast<int>(kBlock) ? block_step : 2 * kLanes);
    add_products<PairProducts>(sums, ones, each);
  }
  store_sums(sums, starts);
  for (int i = 0; i < kWide * kLanes; ++i) starts[i] *= s.off;
}

template <int kWide>
void step_of(const WinogradStep& s) {
  const int64_t pairs = (s.channels + 1) / 2, block_step = kPositions * pairs * kPair, groups = (s.tiles + kMostRows - 1) / kMostRows;
  const int16_t* weights = s.weights + s.first / kBlock * block_step;
  HWY_ALIGN int32_t starts[kStep];
  offsets<kWide>(s, weights, block_step, pairs, starts);
  int32_t at[kMostRows];
  for (int r = 0; r < kMostRows; ++r) at[r] = static_cast<int32_t>(r * s.image_row);
  const int64_t parts = (s.channels + winograd::kMostChannels - 1) / winograd::kMostChannels;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = pairs * part / parts, count = pairs * (part + 1) / parts - first;
    for (int64_t p = 0; p < kPositions; ++p) {
      const int16_t *a = s.images + p * s.image_position + 2 * first, *w = weights + (p * pairs + first) * kPair;
      int32_t* sums = s.sums + p * s.sum_position;
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t row = s.tiles * group / groups, rows = s.tiles * (group + 1) / groups - row;
        kPairsTiles<kWide>[group == 0][static_cast<size_t>(rows - 1)](a + row * s.image_row, at, w, block_step, pairs * kPair, count,
                                                                      sums + row * kStep);
      }
    }
    add_results<kWide>(s, part == 0 ? starts : nullptr);
  }
  for (const TileRun& run : s.runs) {
    for (int64_t i = 0; i < run.rows; ++i) {
      finish<kStep>(s.epilogue, s.results + (i * s.tiles + run.first_tile) * kOut * kStep, run.columns, run.pixel + i * s.width, s.first,
                    s.first, std::min(s.outputs, s.first + kStep));
    }
  }
}

void step_for(const WinogradStep& s) {
  if (s.outputs - s.first > kStep / 2) {
    step_of<kVectors>(s);
  } else {
    step_of<kVectors / 2>(s);
  }
}

int64_t step_size() { return kStep; }

#else  // never called

void bytes_tile(const uint8_t*, winograd::Steps, uint8_t, int64_t, int16_t*, int64_t) {}
void step_for(const WinogradStep&) {}
int64_t step_size() { return 0; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::quantized {

HWY_EXPORT(bytes_tile);
HWY_EXPORT(step_for);
HWY_EXPORT(step_size);

int64_t winograd_step() { return HWY_DYNAMIC_DISPATCH(step_size)(); }
void transform_bytes(const uint8_t* x, winograd::Steps step, uint8_t turn, int64_t channels, int16_t* to, int64_t position) {
  HWY_DYNAMIC_DISPATCH(bytes_tile)(x, step, turn, channels, to, position);
}
void compute_step(const WinogradStep& step) { HWY_DYNAMIC_DISPATCH(step_for)(step); }

}  // namespace galley::quantized

#endif  // HWY_ONCE
