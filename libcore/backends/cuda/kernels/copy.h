#pragma once
// Kernels that move, fill, convert and index elements. Memory traffic bounds them.

#include "libcore/backends/cuda/kernels/divide.h"
#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

template <class T>
GALLEY_DEVICE void copy_elements(const CopyCall& call) {
  if (call.gate != nullptr && *call.gate == 0) return;
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    int64_t from = 0, to = 0, rest = i;
    for (int d = call.dimensions - 1; d >= 0; --d) {
      int64_t outer = 0;
      if (d > 0) outer = call.divisors[d].value > 0 ? quotient(static_cast<uint32_t>(rest), call.divisors[d]) : rest / call.sizes[d];
      const int64_t place = rest - outer * call.sizes[d];
      from += place * call.from_steps[d];
      to += place * call.to_steps[d];
      rest = outer;
    }
    static_cast<T*>(call.to)[to] = static_cast<const T*>(call.from)[from];
  }
}
GALLEY_KERNEL(copy_1, (const CopyCall call)) { copy_elements<uint8_t>(call); }
GALLEY_KERNEL(copy_2, (const CopyCall call)) { copy_elements<uint16_t>(call); }
GALLEY_KERNEL(copy_4, (const CopyCall call)) { copy_elements<uint32_t>(call); }
GALLEY_KERNEL(copy_8, (const CopyCall call)) { copy_elements<uint64_t>(call); }
GALLEY_KERNEL(copy_16, (const CopyCall call)) { copy_elements<Word>(call); }

/// Tiles of kTile x kTile elements, read along one dimension and written along the other.
template <class T, int kTile>
GALLEY_DEVICE void copy_tiles(const CopyTilesCall& call, T* shared) {
  const CopyCall& copy = call.copy;
  if (copy.gate != nullptr && *copy.gate == 0) return;
  constexpr int kLine = kTile + 4 / static_cast<int>(sizeof(T) < 4 ? sizeof(T) : 4), kRows = kThreads / kTile;  // no bank conflicts
  const int lane = static_cast<int>(threadIdx.x) % kTile, row = static_cast<int>(threadIdx.x) / kTile;
  const int last = copy.dimensions - 1;
  for (int64_t tile = blockIdx.x; tile < call.tile_count; tile += gridDim.x) {
    int64_t from = 0, to = 0;
    int across = 0, along = 0;  // the first element of the tile
    uint32_t rest = static_cast<uint32_t>(tile);
    for (int d = last; d >= 0; --d) {
      const uint32_t outer = quotient(rest, call.tiles[d]);
      int place = static_cast<int>(rest - outer * call.tiles[d].value);
      if (d == last || d == call.across) place *= kTile;
      if (d == last) along = place;
      if (d == call.across) across = place;
      from += place * copy.from_steps[d];
      to += place * copy.to_steps[d];
      rest = outer;
    }
    const int wide = static_cast<int>(copy.sizes[call.across]) - across, high = static_cast<int>(copy.sizes[last]) - along;
    const T* source = static_cast<const T*>(copy.from) + from;
    T* target = static_cast<T*>(copy.to) + to;
    GALLEY_UNROLL
    for (int r = 0; r < kTile; r += kRows) {
      if (lane < wide && r + row < high) shared[(r + row) * kLine + lane] = source[(r + row) * copy.from_steps[last] + lane];
    }
    __syncthreads();
    GALLEY_UNROLL
    for (int r = 0; r < kTile; r += kRows) {
      if (lane < high && r + row < wide) target[(r + row) * copy.to_steps[call.across] + lane] = shared[lane * kLine + r + row];
    }
    __syncthreads();  // before the next tile
  }
}
GALLEY_KERNEL(copy_tiles_1, (const CopyTilesCall call)) {
  GALLEY_SHARED(uint8_t, shared, kCopyTileOfShort*(kCopyTileOfShort + 4));
  copy_tiles<uint8_t, kCopyTileOfShort>(call, shared);
}
GALLEY_KERNEL(copy_tiles_2, (const CopyTilesCall call)) {
  GALLEY_SHARED(uint16_t, shared, kCopyTileOfShort*(kCopyTileOfShort + 2));
  copy_tiles<uint16_t, kCopyTileOfShort>(call, shared);
}
GALLEY_KERNEL(copy_tiles_4, (const CopyTilesCall call)) {
  GALLEY_SHARED(uint32_t, shared, kCopyTileOfLong*(kCopyTileOfLong + 1));
  copy_tiles<uint32_t, kCopyTileOfLong>(call, shared);
}
GALLEY_KERNEL(copy_tiles_8, (const CopyTilesCall call)) {
  GALLEY_SHARED(uint64_t, shared, kCopyTileOfLong*(kCopyTileOfLong + 1));
  copy_tiles<uint64_t, kCopyTileOfLong>(call, shared);
}

template <class T>
GALLEY_DEVICE void fill_elements(const FillCall& call) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) static_cast<T*>(call.to)[i] = static_cast<T>(call.bits);
}
GALLEY_KERNEL(fill_1, (const FillCall call)) { fill_elements<uint8_t>(call); }
GALLEY_KERNEL(fill_2, (const FillCall call)) { fill_elements<uint16_t>(call); }
GALLEY_KERNEL(fill_4, (const FillCall call)) { fill_elements<uint32_t>(call); }
GALLEY_KERNEL(fill_8, (const FillCall call)) { fill_elements<uint64_t>(call); }

GALLEY_DEVICE bool is_real(Type type) { return type <= kBF16; }

GALLEY_KERNEL(cast_elements, (const CastCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    if (!is_real(call.from_type)) {
      store(load<int64_t>(call.from, i, call.from_type), call.to, i, call.to_type);
      continue;
    }
    double x = load<double>(call.from, i, call.from_type);
    if (call.rounded == kF32) x = static_cast<float>(x);
    if (call.rounded == kBF16) x = from_bf16(to_bf16(static_cast<float>(x)));
    if (call.rounded == kF16) x = from_f16(to_f16(static_cast<float>(x)));
    store(x, call.to, i, call.to_type);
  }
}

/// Four elements beside each other as they are in memory, so that a warp reads and writes whole lines also of f32.
template <Type kType>
struct alignas(kType == kF32 ? 16 : 8) Quad {
  uint32_t bits[kType == kF32 ? 4 : 2];
  GALLEY_DEVICE float at(int j) const {
    Bits value;
    if constexpr (kType == kF32) {
      value.bits = bits[j];
      return value.number;
    }
    const uint16_t half = static_cast<uint16_t>(bits[j / 2 % 2] >> (j % 2 * 16));
    return kType == kBF16 ? from_bf16(half) : from_f16(half);
  }
  GALLEY_DEVICE void set(const float (&x)[4]) {
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) {
      Bits value;
      value.number = x[j];
      if constexpr (kType == kF32) bits[j] = value.bits;
      if constexpr (kType != kF32)
        if (j % 2 == 0) bits[j / 2] = kType == kBF16 ? to_bf16_pair(x[j], x[j + 1]) : to_f16_pair(x[j], x[j + 1]);
    }
  }
};
template <Type kFrom, Type kTo>
GALLEY_DEVICE void cast_quads_of(const CastCall& call) {
  constexpr int kAtOnce = 4;
  const int64_t quads = call.elements / 4, step = all_threads();
  const auto* from = static_cast<const Quad<kFrom>*>(call.from);
  auto* to = static_cast<Quad<kTo>*>(call.to);
  for (int64_t q = first_element(); q < quads; q += kAtOnce * step) {
    Quad<kFrom> read[kAtOnce];
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      if (q + u * step < quads) read[u] = from[q + u * step];
    }
    GALLEY_KEEP_ORDER();
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      if (q + u * step >= quads) continue;
      float x[4];
      GALLEY_UNROLL
      for (int j = 0; j < 4; ++j) {
        x[j] = read[u].at(j);
        if (call.rounded == kBF16) x[j] = from_bf16(to_bf16(x[j]));
        if (call.rounded == kF16) x[j] = from_f16(to_f16(x[j]));
      }
      Quad<kTo> written;
      written.set(x);
      to[q + u * step] = written;
    }
  }
}
/// Between f32, bf16 and f16.
GALLEY_KERNEL(cast_quads, (const CastCall call)) {
  with_type(call.from_type, [&]<Type kFrom>() { with_type(call.to_type, [&]<Type kTo>() { cast_quads_of<kFrom, kTo>(call); }); });
}

/// to[o, p, i] = from[o, index[o, p, i], i]. An index outside gives 0.
GALLEY_KERNEL(gather_elements, (const GatherCall call)) {
  const int64_t elements = call.outer * call.picked * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    const int64_t place = load<int64_t>(call.index, i, call.index_type), outer = i / (call.picked * call.inner), inner = i % call.inner;
    const bool inside = place >= 0 && place < call.whole;
    const int64_t from = (outer * call.whole + (inside ? place : 0)) * call.inner + inner;
    if (is_real(call.type)) {
      store(inside ? load<double>(call.from, from, call.type) : 0.0, call.to, i, call.type);
    } else {
      store(inside ? load<int64_t>(call.from, from, call.type) : int64_t{0}, call.to, i, call.type);
    }
  }
}

/// The sum for element i of the result, in the order of the elements that are added.
GALLEY_DEVICE float scattered_sum(const GatherCall& call, int64_t i) {
  const int64_t outer = i / (call.whole * call.inner), place = i / call.inner % call.whole, inner = i % call.inner;
  float sum = 0;
  for (int64_t p = 0; p < call.picked; ++p) {
    const int64_t from = (outer * call.picked + p) * call.inner + inner;
    if (load<int64_t>(call.index, from, call.index_type) == place) sum += load<float>(call.from, from, call.type);
  }
  return sum;
}
/// to[o, w, i] = the sum of from[o, p, i] with index[o, p, i] = w: a thread adds up one element of the result.
GALLEY_KERNEL(scatter_add_elements, (const GatherCall call)) {
  const int64_t elements = call.outer * call.whole * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) store(scattered_sum(call, i), call.to, i, call.type);
}

GALLEY_KERNEL(one_hot_elements, (const OneHotCall call)) {
  const int64_t elements = call.outer * call.size * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    const int64_t outer = i / (call.size * call.inner), place = i / call.inner % call.size, inner = i % call.inner;
    const int64_t index = load<int64_t>(call.index, outer * call.inner + inner, call.index_type);
    store(index == place ? 1.0f : 0.0f, call.to, i, call.type);
  }
}

GALLEY_KERNEL(iota_elements, (const IotaCall call)) {
  const int64_t elements = call.outer * call.size * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) store(i / call.inner % call.size, call.to, i, call.type);
}

GALLEY_KERNEL(lookup_elements, (const LookupCall call)) {
  const int low = call.from_type == kU8 ? 0 : -128;
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    static_cast<int8_t*>(call.to)[i] = call.table[load<int>(call.from, i, call.from_type) - low];
  }
}

}  // namespace galley::device
