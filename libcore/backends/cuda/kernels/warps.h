#pragma once
// Sums over the threads of warps, in one order that does not depend on the GPU.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

inline constexpr int kWarps = kThreads / kWarp;

/// The sum of the values of a warp's lanes, the same bits for all of them.
GALLEY_DEVICE float warp_sum(float value) {
  GALLEY_UNROLL
  for (int other = kWarp / 2; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

/// The largest of the values of a block's threads, none of which is NaN, for all of them. `shared`: kWarps places that nothing reads.
GALLEY_DEVICE float block_largest(float value, float* shared) {
  GALLEY_UNROLL
  for (int other = kWarp / 2; other > 0; other /= 2) {
    const float its = __shfl_xor_sync(0xffffffffu, value, other);
    value = its > value ? its : value;
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kWarps; ++w) value = shared[w] > value ? shared[w] : value;
  return value;
}

/// The sum of the values of the threads of each row, where `warps` warps that follow one another have a row (a divisor of kWarps; all
/// threads of the block must come). `shared`: kWarps places, others than in the call before.
GALLEY_DEVICE float row_sum(float value, int warps, float* shared) {
  value = warp_sum(value);
  if (warps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, begin = warp / warps * warps;
  if (threadIdx.x % kWarp == 0) shared[warp] = value;
  __syncthreads();
  value = shared[begin];
  GALLEY_NO_UNROLL
  for (int w = begin + 1; w < begin + warps; ++w) value += shared[w];
  return value;
}
/// The same of two values; `shared`: 2 kWarps places.
GALLEY_DEVICE void row_sums(float& first, float& second, int warps, float* shared) {
  first = warp_sum(first);
  second = warp_sum(second);
  if (warps == 1) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, begin = warp / warps * warps;
  if (threadIdx.x % kWarp == 0) {
    shared[warp] = first;
    shared[kWarps + warp] = second;
  }
  __syncthreads();
  first = shared[begin];
  second = shared[kWarps + begin];
  GALLEY_NO_UNROLL
  for (int w = begin + 1; w < begin + warps; ++w) {
    first += shared[w];
    second += shared[kWarps + w];
  }
}

}  // namespace galley::device
