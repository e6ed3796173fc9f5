#pragma once
// Reductions over axes. Sums are added in one order that does not depend on the GPU: each thread adds every 256th element in order, then
// the threads' sums are added in a tree. Memory traffic bounds them. Views of channels are reduced in f32, in parts (channels.h); other
// views in doubles.

#include "libcore/backends/cuda/kernels/channels.h"

namespace galley::device {

template <class V>
GALLEY_DEVICE V combined(V a, V b, Reduction kind) {
  if (kind == kSum) return a + b;
  if (a != a) return a;  // NaN is the largest and the smallest
  if (b != b) return b;
  return kind == kMaximum ? (a > b ? a : b) : (a < b ? a : b);
}

template <Reduction kKind>
struct Reduced {
  float value;
};
template <Reduction kKind>
GALLEY_DEVICE Reduced<kKind> merged(const Reduced<kKind>& a, const Reduced<kKind>& b) {
  return {combined(a.value, b.value, kKind)};
}
template <Reduction kKind>
GALLEY_DEVICE float start_of() {
  return kKind == kSum ? 0 : kKind == kMaximum ? -infinity() : infinity();
}

template <Reduction kKind>
GALLEY_DEVICE void store_reduced(const ReduceChannelsCall& call, float value, int64_t batch, int64_t channel) {
  store_real(value, call.to, batch * call.to_batch + channel * call.to_channel, call.type);
}
template <Reduction kKind>
struct ReduceShare {
  template <int kWidth, Type kType>
  GALLEY_DEVICE static void run(const ReduceChannelsCall& call, float* floats) {
    auto* shared = reinterpret_cast<Reduced<kKind>*>(floats);
    const ChannelWalk& walk = call.walk;
    const int batch = static_cast<int>(blockIdx.x) / call.blocks;
    const ChannelShare share = channel_share(walk, kWidth, static_cast<int>(blockIdx.x) - batch * call.blocks);
    const int64_t begin = batch * call.batch_step;
    Reduced<kKind> own[kWidth];
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) own[j].value = start_of<kKind>();
    const auto read = [&](int64_t place) { return read_unit<kWidth, kType>(call.from, begin + place, call.type); };
    each_unit<4>(walk, share, read, [&](int64_t, const Unit<kWidth, kType>& unit) {
      float x[kWidth];
      unpack(unit, x);
      GALLEY_UNROLL
      for (int j = 0; j < kWidth; ++j) own[j].value = combined(own[j].value, x[j], kKind);
    });
    merge_share(own, walk, share, shared);
    if (share.row != 0 || share.channel >= walk.channels) return;
    const int64_t place = (static_cast<int64_t>(share.part) * call.batches + batch) * walk.channels + share.channel;
    GALLEY_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      if (j > 0 && walk.planes != 0) return;
      if (walk.parts == 1) {
        store_reduced<kKind>(call, own[j].value, batch, share.channel + j);
      } else {
        call.partial[place + j] = own[j].value;
      }
    }
  }
};
GALLEY_KERNEL(reduce_channels, (const ReduceChannelsCall call)) {
  GALLEY_SHARED(float, shared, kThreads* kPack);
  if (call.kind == kSum) return by_packs<ReduceShare<kSum>>(call, shared);
  if (call.kind == kMaximum) return by_packs<ReduceShare<kMaximum>>(call, shared);
  by_packs<ReduceShare<kMinimum>>(call, shared);
}

template <Reduction kKind>
GALLEY_DEVICE void reduce_parts(const ReduceChannelsCall& call, float* shared) {
  const int64_t o = merged_channel(), outputs = static_cast<int64_t>(call.batches) * call.walk.channels;
  const int row = merged_row();
  Reduced<kKind> own[1] = {{start_of<kKind>()}};
  if (o < outputs) {
    GALLEY_UNROLL_BY_4
    for (int part = row; part < call.walk.parts; part += kMergeRows)
      own[0] = merged(own[0], Reduced<kKind>{call.partial[part * outputs + o]});
  }
  merge_rows(own, row, kMergeRows, kMergeLanes, reinterpret_cast<Reduced<kKind>*>(shared));
  if (row == 0 && o < outputs) store_reduced<kKind>(call, own[0].value, o / call.walk.channels, o % call.walk.channels);
}
/// The results of all parts.
GALLEY_KERNEL(reduce_channel_parts, (const ReduceChannelsCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  if (call.kind == kSum) return reduce_parts<kSum>(call, shared);
  if (call.kind == kMaximum) return reduce_parts<kMaximum>(call, shared);
  reduce_parts<kMinimum>(call, shared);
}

/// The place of element i of a walk.
GALLEY_DEVICE int64_t place_of(int64_t i, int dimensions, const int64_t* sizes, const int64_t* steps) {
  int64_t place = 0;
  for (int d = dimensions - 1; d >= 0; --d) {
    const int64_t outer = d > 0 ? i / sizes[d] : 0;
    place += (i - outer * sizes[d]) * steps[d];
    i = outer;
  }
  return place;
}

/// Combines elements first, first + step, ... of those that result o reduces. There must be one.
template <class V>
GALLEY_DEVICE V reduced(const ReduceCall& call, int64_t begin, int64_t first, int64_t step) {
  V result = load<V>(call.from, begin + place_of(first, call.reduced_dimensions, call.reduced_sizes, call.reduced_steps), call.type);
  for (int64_t i = first + step; i < call.reduced; i += step) {
    const int64_t place = begin + place_of(i, call.reduced_dimensions, call.reduced_sizes, call.reduced_steps);
    result = combined(result, load<V>(call.from, place, call.type), call.kind);
  }
  return result;
}

/// A thread for each result.
template <class V>
GALLEY_DEVICE void reduce_by_threads(const ReduceCall& call) {
  for (int64_t o = first_element(); o < call.outputs; o += all_threads()) {
    const int64_t begin = place_of(o, call.kept_dimensions, call.kept_sizes, call.kept_steps);
    store(call.reduced == 0 ? V(0) : reduced<V>(call, begin, 0, 1), call.to,
          place_of(o, call.kept_dimensions, call.kept_sizes, call.to_steps), call.type);
  }
}

/// A block for each result.
template <class V>
GALLEY_DEVICE void reduce_by_blocks(const ReduceCall& call, V* shared) {
  for (int64_t o = blockIdx.x; o < call.outputs; o += gridDim.x) {
    const int64_t begin = place_of(o, call.kept_dimensions, call.kept_sizes, call.kept_steps);
    if (threadIdx.x < call.reduced) shared[threadIdx.x] = reduced<V>(call, begin, threadIdx.x, kThreads);
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < half && threadIdx.x + half < call.reduced)
        shared[threadIdx.x] = combined(shared[threadIdx.x], shared[threadIdx.x + half], call.kind);
    }
    if (threadIdx.x == 0) store(shared[0], call.to, place_of(o, call.kept_dimensions, call.kept_sizes, call.to_steps), call.type);
    __syncthreads();  // before the next result overwrites the sums
  }
}

GALLEY_KERNEL(reduce_threads, (const ReduceCall call)) { reduce_by_threads<double>(call); }
GALLEY_KERNEL(reduce_threads_integer, (const ReduceCall call)) { reduce_by_threads<int64_t>(call); }
GALLEY_KERNEL(reduce_blocks, (const ReduceCall call)) {
  GALLEY_SHARED(double, shared, kThreads);
  reduce_by_blocks(call, shared);
}
GALLEY_KERNEL(reduce_blocks_integer, (const ReduceCall call)) {
  GALLEY_SHARED(int64_t, shared, kThreads);
  reduce_by_blocks(call, shared);
}

}  // namespace galley::device
