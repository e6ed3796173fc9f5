#pragma once
// The subset of CUDA in which Galley's kernels are written. nvcc compiles it for the device; the host's compiler compiles it for an
// emulation of the device (tests/backends/cuda/stand_in/emulate.h), which is included before. Anything outside the subset is an error
// there.
//
// - Kernels: GALLEY_KERNEL(name, (parameters)) {...}, with a row in kernels/list.h. Parameters are numbers, addresses, and structs of them.
// - Shared memory: GALLEY_SHARED(type, name, count). It is not initialized.
// - threadIdx, blockIdx, blockDim, gridDim; __syncthreads, __syncwarp, __shfl_xor_sync, __shfl_down_sync, atomicAdd, __threadfence.
// - Functions: GALLEY_DEVICE.

#include <cstdint>

#ifdef __CUDACC__
#define GALLEY_DEVICE __device__ __forceinline__
#define GALLEY_KERNEL(name, parameters) extern "C" __global__ void __launch_bounds__(256) name parameters
#define GALLEY_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace galley::device {

inline constexpr int kWarp = 32;

struct BFloat16 {
  uint16_t bits;
};

union Bits {
  float number;
  uint32_t bits;
};
GALLEY_DEVICE float load(const float* from) { return *from; }
GALLEY_DEVICE float load(const BFloat16* from) {
  Bits value;
  value.bits = static_cast<uint32_t>(from->bits) << 16;
  return value.number;
}
GALLEY_DEVICE void store(float value, float* to) { *to = value; }
/// Rounds to nearest, halves to even; NaN stays NaN.
GALLEY_DEVICE void store(float value, BFloat16* to) {
  Bits from;
  from.number = value;
  const bool nan = value != value;
  to->bits =
      nan ? static_cast<uint16_t>(from.bits >> 16 | 0x40) : static_cast<uint16_t>((from.bits + 0x7fffu + (from.bits >> 16 & 1u)) >> 16);
}

}  // namespace galley::device
