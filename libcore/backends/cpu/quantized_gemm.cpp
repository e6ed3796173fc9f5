// The products of quantized_gemm.h. A register tile of pixels by one step of outputs (12 by 32 with AVX-512, 6 by 16 with AVX2) is
// accumulated over the whole window; its sums pass through a small array to the epilogue. 2 pixels inputs outputs taps operations; the
// products bound it; with 64 inputs the epilogue costs as much.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_register_tile-inl.h"

#ifndef GALLEY_QUANTIZED_GEMM_ONCE
#define GALLEY_QUANTIZED_GEMM_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "libcore/backends/cpu/amx_tiles.h"
#include "libcore/backends/cpu/quantized_gemm.h"
#include "libcore/backends/cpu/quantized_thresholds.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if GALLEY_QUANTIZED_VECTORS

/// Widens the weights of `vectors` vectors of outputs to [quad][first two, last two][vector][output][2].
void widen_weights(const int8_t* HWY_RESTRICT weights, int64_t block_bytes, int64_t quads, int vectors, int16_t* HWY_RESTRICT wide) {
  const D16 d16;
  const hn::Repartition<int8_t, D16> d8;
  const hn::Repartition<uint32_t, D16> du;
  const auto low = hn::Set(du, 0xFFFFu);
  for (int64_t q = 0; q < quads; ++q) {
    for (int v = 0; v < vectors; ++v) {
      const int first = v * kLanes;
      const auto bytes = hn::BitCast(d16, hn::LoadU(d8, weights + first / 16 * block_bytes + q * 64 + first % 16 * 4));
      const auto even = hn::BitCast(du, hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes)));  // numbers 0 and 2
      const auto odd = hn::BitCast(du, hn::ShiftRight<8>(bytes));                     // 1 and 3
      hn::Store(hn::BitCast(d16, hn::Or(hn::And(even, low), hn::ShiftLeft<16>(odd))), d16, wide + ((q * 2 + 0) * vectors + v) * 2 * kLanes);
      hn::Store(hn::BitCast(d16, hn::Or(hn::ShiftRight<16>(even), hn::AndNot(low, odd))), d16,
                wide + ((q * 2 + 1) * vectors + v) * 2 * kLanes);
    }
  }
}

/// Sums of each output's weights, times -zero_point.
void compensation(const int8_t* HWY_RESTRICT weights, int64_t block_bytes, int64_t quads, int vectors, int32_t zero_point,
                  int32_t* HWY_RESTRICT out) {
  const D32 d32;
  const DU8 d8;
  const auto ones = hn::Set(d8, 1);
  for (int v = 0; v < vectors; ++v) {
    const int first = v * kLanes;
    const int8_t* w = weights + first / 16 * block_bytes + first % 16 * 4;
    auto sum = hn::Zero(d32);
    if (zero_point != 0) {
      // Two weights fit 16 bits, so this needs no VNNI, which AVX-512 alone does not promise.
      for (int64_t q = 0; q < quads; ++q) sum = dot_quads_reduced(ones, hn::LoadU(hn::RebindToSigned<DU8>(), w + q * 64), sum);
    }
    hn::Store(hn::Mul(sum, hn::Set(d32, -zero_point)), d32, out + first);
  }
}

/// sums[row][output] of a tile with widened weights. kPrefetch: prefetches `ahead`, a block of weights that is widened next.
template <int kRows, int kWide, bool kPrefetch>
HWY_NOINLINE void tile_exact(const Product& p, const int32_t* at, const int16_t* HWY_RESTRICT w, const int8_t* ahead,
                             int32_t* HWY_RESTRICT sums) {
  Tile<PairProducts, int16_t, kRows, kWide> tile;
  tile.begin(at, at);
  for (int64_t run = 0; run < p.runs; ++run) {
    const int16_t* x = static_cast<const int16_t*>(p.a) + *at + p.run_at[run];
    for (const int16_t* end = x + p.run_quads * kQuad; x != end; x += 2) {
      Vectors<D16, kWide> weights;
      load(weights, w, 2 * kLanes);
      w += kWide * 2 * kLanes;
      if constexpr (kPrefetch) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += kBlock * kQuad / 2;
      }
      tile.add(x, weights);
    }
  }
  tile.store(sums);
}

/// tile_exact with weights read in place, for so few pixels that widening would cost more than it saves. Each quad of the pixel holds the
/// values 0, 2, 1, 3, the order that shifts of a lane's bytes produce.
template <int kRows, int kWide>
HWY_NOINLINE void tile_few(const Product& p, const int32_t* at, const int8_t* HWY_RESTRICT w, int64_t block_bytes,
                           int32_t* HWY_RESTRICT sums) {
  const D16 d16;
  Tile<PairProducts, int16_t, kRows, kWide> tile;
  tile.begin(at, at);
  constexpr bool kWhole = kLanes == static_cast<int>(kBlock);
  for (int64_t run = 0; run < p.runs; ++run) {
    const int16_t* x = static_cast<const int16_t*>(p.a) + *at + p.run_at[run];
    for (const int16_t* end = x + p.run_quads * kQuad; x != end; x += kQuad) {
      Vectors<DI8, kWide> weights;
      load(weights, w, kWhole ? block_bytes : 4 * kLanes);
      w += kBlock * kQuad;
      Vectors<D16, kWide> even, odd;
      split(weights, even, odd, d16);
      tile.add(x, even);
      tile.add(x + 2, odd);
    }
  }
  tile.store(sums);
}

/// The sums of a tile of bytes, by vpdpbusd or vpmaddubsw. kPrefetch: prefetches a block of weights, `ahead`.
template <int kRows, int kWide, bool kReduce, bool kPrefetch>
HWY_NOINLINE void tile_bytes(const Product& p, const int32_t* at, const int8_t* HWY_RESTRICT w, int64_t block_bytes, const int8_t* ahead,
                             const int32_t* HWY_RESTRICT from, int32_t* HWY_RESTRICT sums) {
  Tile<std::conditional_t<kReduce, ReducedProducts, QuadProducts>, uint8_t, kRows, kWide> tile;
  tile.begin(at, at, from);
  constexpr bool kWhole = kLanes == static_cast<int>(kBlock);  // a vector is a block
  for (int64_t run = 0; run < p.runs; ++run) {
    const uint8_t* x = static_cast<const uint8_t*>(p.a) + *at + p.run_at[run];
    for (const uint8_t* end = x + p.run_quads * kQuad; x != end; x += kQuad) {
      Vectors<DI8, kWide> weights;
      load(weights, w, kWhole ? block_bytes : 4 * kLanes);
      w += kBlock * kQuad;
      if constexpr (kPrefetch) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += kBlock * kQuad;
      }
      tile.add(x, weights);
    }
  }
  tile.store(sums);
}

using FewTile = void (*)(const Product&, const int32_t*, const int8_t*, int64_t, int32_t*);
using ExactTile = void (*)(const Product&, const int32_t*, const int16_t*, const int8_t*, int32_t*);
using BytesTile = void (*)(const Product&, const int32_t*, const int8_t*, int64_t, const int8_t*, const int32_t*, int32_t*);

template <int kWide, bool kPrefetch, int... kRow>
constexpr std::array<ExactTile, sizeof...(kRow)> exact_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_exact<kRow + 1, kWide, kPrefetch>...};
}
template <int kWide, bool kReduce, bool kPrefetch, int... kRow>
constexpr std::array<BytesTile, sizeof...(kRow)> bytes_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_bytes<kRow + 1, kWide, kReduce, kPrefetch>...};
}
template <int kWide, int... kRow>
constexpr std::array<FewTile, sizeof...(kRow)> few_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_few<kRow + 1, kWide>...};
}
using Rows = std::make_integer_sequence<int, kMostRows>;
using FewRows = std::make_integer_sequence < int, kMostRows<4 ? kMostRows : 4>;
constexpr std::array<FewTile, FewRows::size()> kFewTiles[2] = {few_tiles<kVectors / 2>(FewRows()), few_tiles<kVectors>(FewRows())};
/// Indexed by [prefetch][whole step][rows - 1].
constexpr std::array<ExactTile, kMostRows> kExactTiles[2][2] = {
    {exact_tiles<kVectors / 2, false>(Rows()), exact_tiles<kVectors, false>(Rows())},
    {exact_tiles<kVectors / 2, true>(Rows()), exact_tiles<kVectors, true>(Rows())}};
template <bool kReduce>
constexpr std::array<BytesTile, kMostRows> kBytesTiles[2][2] = {
    {bytes_tiles<kVectors / 2, kReduce, false>(Rows()), bytes_tiles<kVectors, kReduce, false>(Rows())},
    {bytes_tiles<kVectors / 2, kReduce, true>(Rows()), bytes_tiles<kVectors, kReduce, true>(Rows())}};

void multiply_all(const Product& p) {
  constexpr int64_t kTogether = HWY_TARGET <= HWY_AVX3 ? 2 : 8;  // tiles whose sums are finished together
  HWY_ALIGN int32_t sums[kTogether * kMostRows * kStep];
  const int64_t quads = p.runs * p.run_quads, block_bytes = quads * kBlock * kQuad, wide_step = quads * kQuad * kStep;
  // Tiles of sizes as equal as possible.
  const int64_t most = p.few ? static_cast<int64_t>(FewRows::size()) : kMostRows, tiles = (p.pixels + most - 1) / most;
  const int64_t begin = p.begin / kBlock * kBlock, stretch = p.resident ? p.end - begin : kStep;
  for (int64_t from = begin; from < p.end; from += stretch) {
    const int64_t to = std::min(p.end, from + stretch);
    const auto vectors_of = [&](int64_t block) { return to - block > kStep / 2 ? kVectors : kVectors / 2; };
    for (int64_t block = from; block < to; block += kStep) {
      const int8_t* weights = p.weights + block / kBlock * block_bytes;
      if (p.few) break;
      if (p.path == Path::kExact) {
        widen_weights(weights, block_bytes, quads, vectors_of(block), p.wide + (block - from) / kStep * wide_step);
      } else {
        compensation(weights, block_bytes, quads, vectors_of(block), p.zero_point, p.starts + (block - from));
      }
    }
    for (int64_t tile = 0; tile < tiles;) {
      const int64_t pixel = p.pixels * tile / tiles, block_end = std::min(tiles, tile + kTogether),
                    count = p.pixels * block_end / tiles - pixel;
      // The processor does not predict rows that are read four bytes at a time: prefetch the next pixels.
      if (p.far && from == begin && block_end < tiles && p.runs == 1 && p.path != Path::kExact) {
        const int64_t next = p.pixels * std::min(tiles, block_end + kTogether) / tiles;
        const auto* a = static_cast<const uint8_t*>(p.a);
        for (int64_t at = p.pixel_at[pixel + count]; at < p.pixel_at[next - 1] + p.run_quads * kQuad; at += 64) __builtin_prefetch(a + at);
      }
      for (int64_t block = from; block < to; block += kStep) {
        const int8_t* weights = p.weights + block / kBlock * block_bytes;
        const int16_t* wide = p.wide + (block - from) / kStep * wide_step;
        const int32_t* start = p.starts + (block - from);
        const bool full = vectors_of(block) == kVectors;
        // Prefetch the residual and the places of the results during the products; with few inputs, one group of tiles earlier.
        if (p.far || p.epilogue.residual != nullptr) {
          const int64_t first =
              p.far && quads <= quantized_threshold::kPrefetchQuads.value && to - from <= quantized_threshold::kPrefetchOutputs.value
                  ? pixel + count
                  : pixel;
          for (int64_t r = first; r < std::min(p.pixels, first + count); ++r) {
            const int64_t at = r * p.epilogue.channels + block;
            if (p.epilogue.residual != nullptr) __builtin_prefetch(p.epilogue.residual + at);
            if (p.far && !p.epilogue.real) __builtin_prefetch(static_cast<const uint8_t*>(p.epilogue.out) + at, 1);
          }
        }
        int64_t done = 0;
        for (int64_t t = tile; t < block_end; ++t) {
          const int64_t rows = p.pixels * (t + 1) / tiles - p.pixels * t / tiles;
          const auto at = static_cast<size_t>(rows - 1);
          // The first tiles prefetch the weights of the next outputs, a block each: with few pixels, weights come from memory once.
          const bool prefetches = t < kStep / kBlock && block + kStep < p.epilogue.channels;
          const int8_t* ahead = weights + (kStep / kBlock + t) * block_bytes;
          const int32_t* pixels = p.pixel_at + pixel + done;
          int32_t* out = sums + done * kStep;
          switch (p.path) {
            case Path::kExact:
              p.few ? kFewTiles[full][at](p, pixels, weights, block_bytes, out)
                    : kExactTiles[prefetches][full][at](p, pixels, wide, ahead, out);
              break;
            case Path::kReduced: kBytesTiles<true>[prefetches][full][at](p, pixels, weights, block_bytes, ahead, start, out); break;
            case Path::kVnni: kBytesTiles<false>[prefetches][full][at](p, pixels, weights, block_bytes, ahead, start, out); break;
            case Path::kAmx: break;  // multiply_in_tiles
          }
          done += rows;
        }
        finish<kStep>(p.epilogue, sums, count, pixel, block, std::max(p.begin, block), std::min(to, block + kStep));
      }
      tile = block_end;
    }
  }
}

#if HWY_TARGET <= HWY_AVX3
}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();
#include "libcore/backends/cpu/quantized_amx-inl.h"
HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
#else
void multiply_in_tiles(const Product&) {}
int64_t workspace_of_tiles(int64_t, int64_t, int64_t, int64_t) { return 0; }
#endif

int64_t wide_size(int64_t quads, int64_t outputs) { return quads * kQuad * ((outputs + kBlock + kStep - 1) / kStep) * kStep; }

void widen_row(const uint8_t* HWY_RESTRICT in, uint8_t flip, int32_t zero_point, int16_t* HWY_RESTRICT out, int64_t count) {
  const D16 d16;
  const hn::Rebind<uint8_t, D16> d8;
  const auto turn = hn::Set(d8, flip);
  const auto zero = hn::Set(d16, static_cast<int16_t>(zero_point));
  constexpr int64_t kCount = 2 * kLanes;
  int64_t i = 0;
  for (; i + kCount <= count; i += kCount)
    hn::StoreU(hn::Sub(hn::PromoteTo(d16, hn::Xor(hn::LoadU(d8, in + i), turn)), zero), d16, out + i);
  for (; i < count; ++i) out[i] = static_cast<int16_t>((in[i] ^ flip) - zero_point);
}

/// Pixels of three values to four, the last of them 0 (i16) or any byte (u8).
template <bool kWide, class T>
void spread_pixels(const uint8_t* HWY_RESTRICT in, uint8_t flip, int32_t zero_point, T* HWY_RESTRICT out, int64_t pixels) {
  const hn::CappedTag<int16_t, 16> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  constexpr int64_t kLanes8 = static_cast<int64_t>(hn::MaxLanes(d8)), kPixels = kLanes8 / 4;
  HWY_ALIGN uint8_t places[16];
  HWY_ALIGN int16_t offs[16];
  for (int64_t i = 0; i < 16; ++i) {
    places[i] = static_cast<uint8_t>(i % 4 == 3 ? 0 : i / 4 * 3 + i % 4);
    offs[i] = static_cast<int16_t>(i % 4 == 3 ? 0 : zero_point);
  }
  const auto place = hn::Load(d8, places);
  const auto off = hn::Load(d16, offs);
  HWY_ALIGN int16_t kept[16];
  for (int64_t i = 0; i < 16; ++i) kept[i] = i % 4 == 3 ? 0 : -1;
  const auto keep = hn::Load(d16, kept);
  const auto turn = hn::Set(d8, flip);
  int64_t i = 0;
  for (; i * 3 + kLanes8 <= pixels * 3; i += kPixels) {
    const auto v = hn::Xor(hn::TableLookupBytes(hn::LoadU(d8, in + i * 3), place), turn);
    if constexpr (kWide) {
      hn::StoreU(hn::And(hn::Sub(hn::PromoteTo(d16, v), off), keep), d16, out + i * 4);
    } else {
      hn::StoreU(v, d8, out + i * 4);
    }
  }
  for (; i < pixels; ++i) {
    for (int64_t c = 0; c < 3; ++c) out[i * 4 + c] = static_cast<T>((in[i * 3 + c] ^ flip) - (kWide ? zero_point : 0));
    out[i * 4 + 3] = 0;
  }
}

void spread_wide(const uint8_t* HWY_RESTRICT in, uint8_t flip, int32_t zero_point, int16_t* HWY_RESTRICT out, int64_t pixels) {
  spread_pixels<true>(in, flip, zero_point, out, pixels);
}
void spread_bytes(const uint8_t* HWY_RESTRICT in, uint8_t flip, uint8_t* HWY_RESTRICT out, int64_t pixels) {
  spread_pixels<false>(in, flip, 0, out, pixels);
}

void copy_turned(const uint8_t* HWY_RESTRICT in, uint8_t flip, uint8_t* HWY_RESTRICT out, int64_t count) {
  if (flip == 0) {
    std::memcpy(out, in, static_cast<size_t>(count));
    return;
  }
  const DU8 d8;
  const auto turn = hn::Set(d8, flip);
  constexpr int64_t kCount = 4 * kLanes;
  int64_t i = 0;
  for (; i + kCount <= count; i += kCount) hn::StoreU(hn::Xor(hn::LoadU(d8, in + i), turn), d8, out + i);
  for (; i < count; ++i) out[i] = in[i] ^ flip;
}

VectorCode code() { return {true, kHasReduced, HWY_TARGET <= HWY_AVX3, hwy::TargetName(HWY_TARGET)}; }

#else  // never called

void multiply_all(const Product&) {}
void multiply_in_tiles(const Product&) {}
int64_t workspace_of_tiles(int64_t, int64_t, int64_t, int64_t) { return 0; }
int64_t wide_size(int64_t, int64_t) { return 0; }
void widen_row(const uint8_t*, uint8_t, int32_t, int16_t*, int64_t) {}
void spread_wide(const uint8_t*, uint8_t, int32_t, int16_t*, int64_t) {}
void spread_bytes(const uint8_t*, uint8_t, uint8_t*, int64_t) {}
void copy_turned(const uint8_t*, uint8_t, uint8_t*, int64_t) {}
VectorCode code() { return {false, false, false, hwy::TargetName(HWY_TARGET)}; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::quantized {

HWY_EXPORT(multiply_all);
HWY_EXPORT(multiply_in_tiles);
HWY_EXPORT(workspace_of_tiles);
HWY_EXPORT(wide_size);
HWY_EXPORT(widen_row);
HWY_EXPORT(copy_turned);
HWY_EXPORT(spread_wide);
HWY_EXPORT(spread_bytes);
HWY_EXPORT(code);

int64_t wide_values(int64_t quads, int64_t outputs) { return HWY_DYNAMIC_DISPATCH(wide_size)(quads, outputs); }
int64_t tile_workspace(int64_t runs, int64_t run_quads, int64_t pixels, int64_t outputs) {
  return HWY_DYNAMIC_DISPATCH(workspace_of_tiles)(runs, run_quads, pixels, outputs);
}
void multiply(const Product& product) {
  if (product.path == Path::kAmx) return HWY_DYNAMIC_DISPATCH(multiply_in_tiles)(product);
  HWY_DYNAMIC_DISPATCH(multiply_all)(product);
}
void widen(const uint8_t* in, uint8_t flip, int32_t zero_point, int16_t* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(widen_row)(in, flip, zero_point, out, count);
}
void copy_bytes(const uint8_t* in, uint8_t flip, uint8_t* out, int64_t count) { HWY_DYNAMIC_DISPATCH(copy_turned)(in, flip, out, count); }

void widen_rgb(const uint8_t* in, uint8_t flip, int32_t zero_point, int16_t* out, int64_t pixels) {
  HWY_DYNAMIC_DISPATCH(spread_wide)(in, flip, zero_point, out, pixels);
}
void copy_rgb(const uint8_t* in, uint8_t flip, uint8_t* out, int64_t pixels) { HWY_DYNAMIC_DISPATCH(spread_bytes)(in, flip, out, pixels); }

VectorCode vector_code() { return HWY_DYNAMIC_DISPATCH(code)(); }

}  // namespace galley::quantized

#endif  // HWY_ONCE
