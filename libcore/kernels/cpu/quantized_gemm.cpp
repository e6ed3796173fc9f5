// See quantized_gemm.h. A tile of pixels times a step of outputs stays in registers over the whole window; its sums pass through a small
// array to the epilogue.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/kernels/cpu/quantized_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/kernels/cpu/quantized_epilogue-inl.h"

#ifndef GALLEY_QUANTIZED_GEMM_ONCE
#define GALLEY_QUANTIZED_GEMM_ONCE

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "libcore/kernels/cpu/quantized_gemm.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if GALLEY_QUANTIZED_VECTORS

#if HWY_TARGET == HWY_AVX3
constexpr int kStep = 32, kMostRows = 12;  // 24 sums of 32 registers
#elif HWY_TARGET == HWY_AVX2
constexpr int kStep = 16, kMostRows = 6;  // 12 sums of 16 registers
#else
constexpr int kStep = 16, kMostRows = 2;
#endif
constexpr int kVectors = kStep / kLanes;  // of a step

/// Widens `vectors` vectors' worth of outputs: [quad][first two, last two][vector][output][2].
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
      hn::Store(hn::BitCast(d16, hn::Or(hn::ShiftRight<16>(even), hn::AndNot(low, odd))), d16, wide + ((q * 2 + 1) * vectors + v) * 2 * kLanes);
    }
  }
}

/// Sums of each output's weights, times -zero_point.
void compensation(const int8_t* HWY_RESTRICT weights, int64_t block_bytes, int64_t quads, int vectors, int32_t zero_point, int32_t* HWY_RESTRICT out) {
  const D32 d32;
  const DU8 d8;
  const auto ones = hn::Set(d8, 1);
  for (int v = 0; v < vectors; ++v) {
    const int first = v * kLanes;
    const int8_t* w = weights + first / 16 * block_bytes + first % 16 * 4;
    auto sum = hn::Zero(d32);
    if (zero_point != 0) {
      for (int64_t q = 0; q < quads; ++q) sum = dot_quads(ones, hn::LoadU(hn::RebindToSigned<DU8>(), w + q * 64), sum);
    }
    hn::Store(hn::Mul(sum, hn::Set(d32, -zero_point)), d32, out + first);
  }
}

template <class T>
HWY_INLINE int32_t four_bytes(const T* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

/// sums[row][output] of a tile with widened weights.
template <int kRows, int kWide>
HWY_NOINLINE void tile_exact(const Product& p, const int32_t* at, const int16_t* HWY_RESTRICT w, int32_t* HWY_RESTRICT sums) {
  const D16 d16;
  const D32 d32;
  const int16_t* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = static_cast<const int16_t*>(p.a) + at[r];
  hn::Vec<D32> sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Zero(d32);
  }
  for (int64_t run = 0; run < p.runs; ++run) {
    const int64_t begin = p.run_at[run], end = begin + p.run_quads * kQuad;
    for (int64_t i = begin; i < end; i += 2) {
      hn::Vec<D16> weight[kWide];
      for (int v = 0; v < kWide; ++v) weight[v] = hn::Load(d16, w + v * 2 * kLanes);
      w += kWide * 2 * kLanes;
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::BitCast(d16, hn::Set(d32, four_bytes(rows[r] + i)));
        for (int v = 0; v < kWide; ++v) sum[r][v] = dot_pairs(x, weight[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) hn::Store(sum[r][v], d32, sums + r * kStep + v * kLanes);
  }
}

/// The same of bytes, by vpdpbusd or vpmaddubsw.
template <int kRows, int kWide, bool kReduce>
HWY_NOINLINE void tile_bytes(const Product& p, const int32_t* at, const int8_t* HWY_RESTRICT w, int64_t block_bytes, const int32_t* HWY_RESTRICT from, int32_t* HWY_RESTRICT sums) {
  const DU8 d8;
  const hn::RebindToSigned<DU8> di8;
  const D32 d32;
  const uint8_t* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = static_cast<const uint8_t*>(p.a) + at[r];
  hn::Vec<D32> sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Load(d32, from + v * kLanes);
  }
  for (int64_t run = 0; run < p.runs; ++run) {
    const int64_t begin = p.run_at[run], end = begin + p.run_quads * kQuad;
    for (int64_t i = begin; i < end; i += kQuad) {
      hn::Vec<decltype(di8)> weight[kWide];
      for (int v = 0; v < kWide; ++v) weight[v] = hn::LoadU(di8, w + v * kLanes / 16 * block_bytes + v * kLanes % 16 * 4);
      w += 64;
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::BitCast(d8, hn::Set(d32, four_bytes(rows[r] + i)));
        for (int v = 0; v < kWide; ++v) sum[r][v] = kReduce ? dot_quads_reduced(x, weight[v], sum[r][v]) : dot_quads(x, weight[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) hn::Store(sum[r][v], d32, sums + r * kStep + v * kLanes);
  }
}

using ExactTile = void (*)(const Product&, const int32_t*, const int16_t*, int32_t*);
using BytesTile = void (*)(const Product&, const int32_t*, const int8_t*, int64_t, const int32_t*, int32_t*);

template <int kWide, int... kRow>
constexpr std::array<ExactTile, sizeof...(kRow)> exact_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_exact<kRow + 1, kWide>...};
}
template <int kWide, bool kReduce, int... kRow>
constexpr std::array<BytesTile, sizeof...(kRow)> bytes_tiles(std::integer_sequence<int, kRow...>) {
  return {tile_bytes<kRow + 1, kWide, kReduce>...};
}
using Rows = std::make_integer_sequence<int, kMostRows>;
constexpr std::array<ExactTile, kMostRows> kExactTiles[2] = {exact_tiles<kVectors / 2>(Rows()), exact_tiles<kVectors>(Rows())};
constexpr std::array<BytesTile, kMostRows> kReducedTiles[2] = {bytes_tiles<kVectors / 2, true>(Rows()), bytes_tiles<kVectors, true>(Rows())};
constexpr std::array<BytesTile, kMostRows> kQuadTiles[2] = {bytes_tiles<kVectors / 2, false>(Rows()), bytes_tiles<kVectors, false>(Rows())};

void multiply_all(const Product& p) {
  HWY_ALIGN int32_t sums[kMostRows * kStep];
  HWY_ALIGN int32_t from[kStep];
  const int64_t quads = p.runs * p.run_quads, block_bytes = quads * kBlock * kQuad;
  // As many tiles as needed, of sizes as equal as possible.
  const int64_t tiles = (p.pixels + kMostRows - 1) / kMostRows;
  for (int64_t block = p.begin / kBlock * kBlock; block < p.end; block += kStep) {
    const int64_t first = std::max(p.begin, block), last = std::min(p.end, block + kStep);
    const bool full = last - block > kStep / 2;
    const int vectors = full ? kVectors : kVectors / 2;
    const int8_t* weights = p.weights + block / kBlock * block_bytes;
    if (p.path == Path::kExact) {
      widen_weights(weights, block_bytes, quads, vectors, p.wide);
    } else {
      compensation(weights, block_bytes, quads, vectors, p.zero_point, from);
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t pixel = p.pixels * tile / tiles, rows = p.pixels * (tile + 1) / tiles - pixel;
      const int32_t* at = p.pixel_at + pixel;
      switch (p.path) {
        case Path::kExact: kExactTiles[full][static_cast<size_t>(rows - 1)](p, at, p.wide, sums); break;
        case Path::kReduced: kReducedTiles[full][static_cast<size_t>(rows - 1)](p, at, weights, block_bytes, from, sums); break;
        case Path::kVnni: kQuadTiles[full][static_cast<size_t>(rows - 1)](p, at, weights, block_bytes, from, sums); break;
      }
      finish<kStep>(p.epilogue, sums, rows, pixel, block, first, last);
    }
  }
}

int64_t wide_size(int64_t quads) { return quads * kQuad * kStep; }

void widen_row(const uint8_t* HWY_RESTRICT in, uint8_t flip, int32_t zero_point, int16_t* HWY_RESTRICT out, int64_t count) {
  const D16 d16;
  const hn::Rebind<uint8_t, D16> d8;
  const auto turn = hn::Set(d8, flip);
  const auto zero = hn::Set(d16, static_cast<int16_t>(zero_point));
  constexpr int64_t kCount = 2 * kLanes;
  int64_t i = 0;
  for (; i + kCount <= count; i += kCount) hn::StoreU(hn::Sub(hn::PromoteTo(d16, hn::Xor(hn::LoadU(d8, in + i), turn)), zero), d16, out + i);
  for (; i < count; ++i) out[i] = static_cast<int16_t>((in[i] ^ flip) - zero_point);
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

/// Bit 0: compiled with vpdpbusd, bit 1: with vpmaddubsw, bit 2: all of this.
int64_t abilities() { return (HWY_TARGET == HWY_AVX3 ? 1 : 0) + (kHasReduced ? 2 : 0) + 4; }

#else  // never called

void multiply_all(const Product&) {}
int64_t wide_size(int64_t) { return 0; }
void widen_row(const uint8_t*, uint8_t, int32_t, int16_t*, int64_t) {}
void copy_turned(const uint8_t*, uint8_t, uint8_t*, int64_t) {}
int64_t abilities() { return 0; }

#endif

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::quantized {

HWY_EXPORT(multiply_all);
HWY_EXPORT(wide_size);
HWY_EXPORT(widen_row);
HWY_EXPORT(copy_turned);
HWY_EXPORT(abilities);
HWY_EXPORT(target_name);

namespace {
std::atomic<int> forced{-1};
}

int64_t wide_values(int64_t quads) { return HWY_DYNAMIC_DISPATCH(wide_size)(quads); }
void multiply(const Product& product) { HWY_DYNAMIC_DISPATCH(multiply_all)(product); }
void widen(const uint8_t* in, uint8_t flip, int32_t zero_point, int16_t* out, int64_t count) { HWY_DYNAMIC_DISPATCH(widen_row)(in, flip, zero_point, out, count); }
void copy_bytes(const uint8_t* in, uint8_t flip, uint8_t* out, int64_t count) { HWY_DYNAMIC_DISPATCH(copy_turned)(in, flip, out, count); }

bool available() { return HWY_DYNAMIC_DISPATCH(abilities)() & 4; }

bool offers(Path path) {
  const int64_t able = HWY_DYNAMIC_DISPATCH(abilities)();
#if HWY_ARCH_X86
  if (path == Path::kVnni && (able & 1)) return __builtin_cpu_supports("avx512vnni");
#endif
  return path != Path::kReduced || (able & 2);
}

Path best_path(Saturation saturation) {
  if (forced >= 0) return static_cast<Path>(forced.load());
  const int64_t able = HWY_DYNAMIC_DISPATCH(abilities)();
  if ((able & 1) && offers(Path::kVnni)) return Path::kVnni;
  return saturation == Saturation::kReduced && (able & 2) ? Path::kReduced : Path::kExact;
}
void force_path(const Path* path) { forced = path ? static_cast<int>(*path) : -1; }

std::string path_name(Path path) {
  constexpr std::array<std::string_view, 3> kNames{"exact", "reduced", "vnni"};
  std::string target = HWY_DYNAMIC_DISPATCH(target_name)();
  for (char& c : target) c = static_cast<char>(std::tolower(c));
  return cat(kNames[static_cast<size_t>(path)], ":", target);
}

}  // namespace galley::quantized

#endif  // HWY_ONCE
