#pragma once
// Reductions over axes. Sums are added in one order that does not depend on the GPU: each thread adds every 256th element in order, then
// the threads' sums are added in a tree. Sums of real numbers are doubles: memory traffic bounds these kernels.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

template <class V>
GALLEY_DEVICE V combined(V a, V b, Reduction kind) {
  if (kind == kSum) return a + b;
  if (a != a) return a;  // NaN is the largest and the smallest
  if (b != b) return b;
  return kind == kMaximum ? (a > b ? a : b) : (a < b ? a : b);
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
