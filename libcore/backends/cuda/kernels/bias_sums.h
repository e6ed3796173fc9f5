#pragma once
// Backward functions that add up their result over rows, as it is stored: the sums of a part in a fixed order, then those of parts
// (reduce_channel_parts). Memory traffic bounds them: 6 bytes of an element in bf16.

#include "libcore/backends/cuda/kernels/channels.h"
#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/reduce.h"

namespace galley::device {

/// Stores x rounded to the type, which it becomes.
template <int kWidth, Type kType>
GALLEY_DEVICE void round_unit(float (&x)[kWidth], void* array, int64_t i, Type type) {
  if constexpr (kWidth == kPack) {
    const Packed<kType> pack = packed<kType>(x);
    write_pack(pack, array, i);
    unpack(pack, x);
  } else {
    store_real(x[0], array, i, type);
    x[0] = rounded(x[0], type);
  }
}

template <class F>
struct BackwardSums {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const GeluSumsCall& call, float* floats) {
    struct Read {
      Unit<kWidth, kType> grad, x;
    };
    const ChannelWalk& walk = call.walk;
    const ChannelShare share = channel_share(walk, kWidth, static_cast<int>(blockIdx.x));
    Reduced<kSum> own[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) own[j].value = 0;
    const auto read = [&](int64_t place) {
      return Read{read_unit<kWidth, kType>(call.grad, place, call.type), read_unit<kWidth, kType>(call.x, place, call.type)};
    };
    each_unit<kType == kF32 ? 1 : 2>(walk, share, read, [&](int64_t place, const Read& values) {
      float dx[kWidth], x[kWidth];
      unpack(values.grad, dx);
      unpack(values.x, x);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) dx[j] = backward_of<F>(dx[j], x[j], 0.0f, 0.0f);
      round_unit<kWidth, kType>(dx, call.dx, place, call.type);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) own[j].value += dx[j];
    });
    merge_share(own, walk, share, reinterpret_cast<Reduced<kSum>*>(floats));
    if (share.row != 0 || share.channel >= walk.channels) return;
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      if (walk.parts == 1) {
        store_real(own[j].value, call.sums, share.channel + j, call.type);
      } else {
        call.partial[static_cast<int64_t>(share.part) * walk.channels + share.channel + j] = own[j].value;
      }
    }
  }
};
GALLEY_KERNEL_OF(4, gelu_backward_sums, (const GeluSumsCall call)) {
  GALLEY_SHARED(float, shared, kThreads* kPack);
  if (call.by_tanh != 0) return by_packs<BackwardSums<GeluTanh>>(call, shared);
  by_packs<BackwardSums<Gelu>>(call, shared);
}

}  // namespace galley::device
