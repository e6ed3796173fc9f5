#pragma once
// Bytes of images as normalized numbers.

#include "libcore/backends/cuda/kernels/divide.h"
#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

/// Eight bytes beside each other.
struct alignas(8) Octet {
  uint32_t bits[2];
  GALLEY_DEVICE int at(int j) const { return static_cast<int>(bits[j / 4] >> (j % 4 * 8) & 0xffu); }
};

/// Where element i is: the table of its channel, and its place in the channel's elements beside each other.
struct PixelPlace {
  uint32_t table, place;
  GALLEY_DEVICE PixelPlace(const PixelsCall& call, int64_t i) {
    const uint32_t channel = quotient(static_cast<uint32_t>(i), call.inner);
    table = channel - quotient(channel, call.tables) * call.tables.value;
    place = static_cast<uint32_t>(i) - channel * call.inner.value;
  }
  GALLEY_DEVICE void step(const PixelsCall& call) {
    if (++place < call.inner.value) return;
    place = 0;
    table = table + 1 == call.tables.value ? 0 : table + 1;
  }
};

template <Type kType>
GALLEY_DEVICE void normalize_octets(const PixelsCall& call, const float* table) {
  constexpr int kAtOnce = 4;
  const int64_t octets = call.elements / kPack, step = all_threads();
  const auto* from = reinterpret_cast<const Octet*>(call.from);
  for (int64_t o = first_element(); o < octets; o += kAtOnce * step) {
    Octet read[kAtOnce];
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      if (o + u * step < octets) read[u] = from[o + u * step];
    }
    GALLEY_KEEP_ORDER();
    GALLEY_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      if (o + u * step >= octets) continue;
      const int64_t i = (o + u * step) * kPack;
      PixelPlace at(call, i);
      float y[kPack];
      GALLEY_UNROLL
      for (int j = 0; j < kPack; ++j) {
        y[j] = table[at.table * 256 + static_cast<uint32_t>(read[u].at(j))];
        at.step(call);
      }
      write_pack(packed<kType>(y), call.to, i);
    }
  }
}

/// The results of all bytes are computed once for each block, in f32 as on the host.
GALLEY_KERNEL(normalize_pixels, (const PixelsCall call)) {
  GALLEY_SHARED(float, table, kMostPixelTables * 256);
  const int results = static_cast<int>(call.tables.value) * 256;
  for (int r = static_cast<int>(threadIdx.x); r < results; r += kThreads) {
    const float byte = static_cast<float>(r % 256), x = call.scale != 0 ? byte / 255.0f : byte;
    table[r] = (x - call.mean[r / 256]) / call.std[r / 256];
  }
  __syncthreads();
  int64_t done = 0;
  if (call.packs != 0) {
    with_type(call.type, [&]<Type kType>() { normalize_octets<kType>(call, table); });
    done = call.elements / kPack * kPack;
  }
  for (int64_t i = done + first_element(); i < call.elements; i += all_threads()) {
    const PixelPlace at(call, i);
    store_real(table[at.table * 256 + call.from[i]], call.to, i, call.type);
  }
}

}  // namespace galley::device
