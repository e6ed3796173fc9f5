#pragma once
// Arrays that are walked channel by channel, in packs where these are aligned (ChannelWalk), and trees over the rows of a block.

#include "libcore/backends/cuda/kernels/divide.h"
#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

GALLEY_DEVICE float infinity() {
  Bits value;
  value.bits = 0x7f800000u;
  return value.number;
}

/// A pack, or one element.
template <int kWidth>
GALLEY_DEVICE void load_channels(const void* array, int64_t i, Type type, float (&x)[kWidth]) {
  if constexpr (kWidth == kPack) {
    load_pack(array, i, type, x);
  } else {
    x[0] = load<float>(array, i, type);
  }
}
template <int kWidth>
GALLEY_DEVICE void store_channels(const float (&x)[kWidth], void* array, int64_t i, Type type) {
  if constexpr (kWidth == kPack) {
    store_pack(x, array, i, type);
  } else {
    store(x[0], array, i, type);
  }
}
/// The same as it is in memory. `type`: of single elements; packs have kType.
template <int kWidth, Type kType>
struct Unit {
  Packed<kType> pack;
};
template <Type kType>
struct Unit<1, kType> {
  float value;
};
template <int kWidth, Type kType>
GALLEY_DEVICE Unit<kWidth, kType> read_unit(const void* array, int64_t i, Type type) {
  if constexpr (kWidth == kPack) return {read_pack<kType>(array, i)};
  if constexpr (kWidth == 1) return {load_real(array, i, type)};
}
template <int kWidth, Type kType>
GALLEY_DEVICE void unpack(const Unit<kWidth, kType>& unit, float (&x)[kWidth]) {
  if constexpr (kWidth == kPack) {
    unpack(unit.pack, x);
  } else {
    x[0] = unit.value;
  }
}
template <int kWidth, Type kType>
GALLEY_DEVICE void write_unit(const float (&x)[kWidth], void* array, int64_t i, Type type) {
  if constexpr (kWidth == kPack) {
    write_pack(packed<kType>(x), array, i);
  } else {
    store_real(x[0], array, i, type);
  }
}
/// Calls F::run<width, type>(call, ...) for call.walk and call.type: f32, bf16 or f16.
template <class F, class Call, class... A>
GALLEY_DEVICE void by_packs(const Call& call, A... arguments) {
  if (call.walk.packs == 0) return F::template run<1, kF32>(call, arguments...);
  if (call.type == kBF16) return F::template run<kPack, kBF16>(call, arguments...);
  if (call.type == kF16) return F::template run<kPack, kF16>(call, arguments...);
  F::template run<kPack, kF32>(call, arguments...);
}
template <int kWidth>
GALLEY_DEVICE void set_all(float (&x)[kWidth], float value) {
  GALLEY_UNROLL
  for (int j = 0; j < kWidth; ++j) x[j] = value;
}

/// What a thread walks: units begin, begin + step, ... below end, of `channel` or of a pack of channels from that on. `row_step`: threads
/// from one row of a block to the next.
struct ChannelShare {
  int row, row_step, part, channel, begin, end, step;
};
GALLEY_DEVICE ChannelShare channel_share(const ChannelWalk& walk, int width, int block) {
  const int thread = static_cast<int>(threadIdx.x), rows = kThreads / walk.lanes;
  const int tile = block / walk.parts, part = block - tile * walk.parts;
  const bool planes = walk.planes != 0;
  const int lane = planes ? thread / rows : thread % walk.lanes, row = planes ? thread % rows : thread / walk.lanes;
  const int channel = (tile * walk.lanes + lane) * (planes ? 1 : width);
  const int begin = part * walk.part_units, end = begin + walk.part_units < walk.units ? begin + walk.part_units : walk.units;
  return {row, planes ? 1 : walk.lanes, part, channel, begin + row, channel < walk.channels ? end : 0, rows};
}
GALLEY_DEVICE int units_of(const ChannelShare& share) {
  return share.begin < share.end ? (share.end - share.begin + share.step - 1) / share.step : 0;
}
GALLEY_DEVICE int64_t place_of(const ChannelWalk& walk, int channel, int unit) {
  const int outer = static_cast<int>(quotient(static_cast<uint32_t>(unit), walk.inner)),
            inner = unit - outer * static_cast<int>(walk.inner.value);
  return static_cast<int64_t>(outer) * walk.outer_step + inner * walk.unit + static_cast<int64_t>(channel) * walk.channel_step;
}

/// use(place, read(place)) for all units of a thread in order. kAtOnce are on their way at once.
template <int kAtOnce, class R, class U>
GALLEY_DEVICE void each_unit(const ChannelWalk& walk, const ChannelShare& share, const R& read, const U& use) {
  int unit = share.begin;
  for (; unit + (kAtOnce - 1) * share.step < share.end; unit += kAtOnce * share.step) {
    int64_t place[kAtOnce];
    decltype(read(int64_t{0})) values[kAtOnce];
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      place[u] = place_of(walk, share.channel, unit + u * share.step);
      values[u] = read(place[u]);
    }
    GALLEY_KEEP_ORDER();  // else the compiler may move each to its use
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) use(place[u], values[u]);
  }
  for (; unit < share.end; unit += share.step) {
    const int64_t place = place_of(walk, share.channel, unit);
    use(place, read(place));
  }
}

/// Elements of a vector in f32, bf16 or f16 for the channels of a thread; a null vector: `otherwise`. Packs of it must be aligned.
template <int kWidth>
GALLEY_DEVICE void load_vector(const void* vector, Type type, const ChannelWalk& walk, int channel, float otherwise, float (&x)[kWidth]) {
  set_all(x, otherwise);
  if (vector == nullptr || channel >= walk.channels) return;
  if (kWidth == 1 || walk.planes != 0) {
    return set_all(x, load_real(vector, channel, type));
  }
  if constexpr (kWidth == kPack) load_pack(vector, channel, type, x);
}

/// merged(own, that of each other row of the block) for row 0 of `rows`, in a fixed tree. `shared` has kThreads * kWidth places.
template <class T, int kWidth>
GALLEY_DEVICE void merge_rows(T (&own)[kWidth], int row, int rows, int row_step, T* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) shared[j * kThreads + thread] = own[j];
    }
    __syncthreads();
    if (row < half) {
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) own[j] = merged(own[j], shared[j * kThreads + thread + half * row_step]);
    }
  }
}
/// Merges the packs of all rows; in planes, a pack first, into its first element.
template <class T, int kWidth>
GALLEY_DEVICE void merge_share(T (&own)[kWidth], const ChannelWalk& walk, const ChannelShare& share, T* shared) {
  if (walk.planes == 0) return merge_rows(own, share.row, share.step, share.row_step, shared);
  T one[1] = {own[0]};
  GALLEY_UNROLL
  for (int j = 1; j < kWidth; ++j) one[0] = merged(one[0], own[j]);
  merge_rows(one, share.row, share.step, share.row_step, shared);
  own[0] = one[0];
}

// Blocks that merge the results of parts: a thread for each of kMergeLanes channels (a word of 32 bytes), in rows of every 32nd part.
inline constexpr int kMergeLanes = 8, kMergeRows = kThreads / kMergeLanes;
GALLEY_DEVICE int64_t merged_channel() { return static_cast<int64_t>(blockIdx.x) * kMergeLanes + threadIdx.x % kMergeLanes; }
GALLEY_DEVICE int merged_row() { return static_cast<int>(threadIdx.x) / kMergeLanes; }

}  // namespace galley::device
