#pragma once
// The subset of CUDA in which Galley's kernels are written. nvcc compiles it for the device; the host's compiler compiles it for an
// emulation of the device (tests/backends/cuda/stand_in/emulate.h), which is included before. Anything outside the subset is an error
// there.
//
// - Kernels: GALLEY_KERNEL(name, (parameters)) {...}, with a row in kernels/list.h; GALLEY_KERNEL_OF, if a processor must hold several
//   blocks. Parameters are numbers, addresses, and structs of them.
// - Shared memory: GALLEY_SHARED(type, name, count). It is not initialized.
// - threadIdx, blockIdx, blockDim, gridDim; __syncthreads, __syncwarp, __shfl_xor_sync, __shfl_down_sync, atomicAdd, __threadfence.
// - Functions: GALLEY_DEVICE. Loops that nvcc unrolls: GALLEY_UNROLL, GALLEY_UNROLL_BY_4; that it keeps: GALLEY_NO_UNROLL.
// - Reads before GALLEY_KEEP_ORDER() stay before what follows it.

#include "libcore/backends/cuda/kernels/calls.h"

#ifdef __CUDACC__
#define GALLEY_DEVICE __device__ __forceinline__
#define GALLEY_KERNEL(name, parameters) extern "C" __global__ void __launch_bounds__(256) name parameters
#define GALLEY_KERNEL_OF(blocks, name, parameters) extern "C" __global__ void __launch_bounds__(256, blocks) name parameters
#define GALLEY_SHARED(type, name, count) __shared__ type name[count]
#define GALLEY_KEEP_ORDER() asm volatile("" ::: "memory")
#define GALLEY_UNROLL _Pragma("unroll")
#define GALLEY_UNROLL_BY_4 _Pragma("unroll 4")
#define GALLEY_NO_UNROLL _Pragma("unroll 1")
#endif

namespace galley::device {

inline constexpr int kWarp = 32;

union Bits {
  float number;
  uint32_t bits;
};

GALLEY_DEVICE float from_bf16(uint16_t bits) {
  Bits value;
  value.bits = static_cast<uint32_t>(bits) << 16;
  return value.number;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// By instructions. Rounded to nearest, halves to even; NaN stays NaN.
GALLEY_DEVICE uint16_t to_bf16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
GALLEY_DEVICE uint16_t to_f16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
GALLEY_DEVICE float from_f16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
/// Two numbers beside each other.
GALLEY_DEVICE uint32_t to_bf16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
GALLEY_DEVICE uint32_t to_f16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
#else
/// Rounds to nearest, halves to even; NaN stays NaN.
GALLEY_DEVICE uint16_t to_bf16(float value) {
  Bits from;
  from.number = value;
  const bool nan = value != value;
  return nan ? static_cast<uint16_t>(from.bits >> 16 | 0x40) : static_cast<uint16_t>((from.bits + 0x7fffu + (from.bits >> 16 & 1u)) >> 16);
}

GALLEY_DEVICE float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
  Bits value;
  if (exponent == 0) {
    value.number = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
    value.bits |= sign;
  } else {
    value.bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
  }
  return value.number;
}
/// Rounds to nearest, halves to even; NaN stays NaN.
GALLEY_DEVICE uint16_t to_f16(float value) {
  Bits from;
  from.number = value;
  const uint32_t sign = from.bits >> 16 & 0x8000u;
  from.bits &= 0x7fffffffu;
  if (value != value) return static_cast<uint16_t>(sign | 0x7e00u);
  if (from.bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more: infinity
  if (from.bits < 0x38800000u) {                                               // below 2^-14: a multiple of 2^-24, as sums with 0.5 are
    from.number += 0.5f;
    return static_cast<uint16_t>(sign | (from.bits - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (from.bits - 0x38000000u + 0xfffu + (from.bits >> 13 & 1u)) >> 13);
}
/// Two numbers beside each other.
GALLEY_DEVICE uint32_t to_bf16_pair(float low, float high) { return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16; }
GALLEY_DEVICE uint32_t to_f16_pair(float low, float high) { return to_f16(low) | static_cast<uint32_t>(to_f16(high)) << 16; }
#endif

/// Element i of an array, as V (float or double).
template <class V>
GALLEY_DEVICE V load(const void* array, int64_t i, Type type) {
  switch (type) {
    case kF32: return static_cast<V>(static_cast<const float*>(array)[i]);
    case kF64: return static_cast<V>(static_cast<const double*>(array)[i]);
    case kF16: return static_cast<V>(from_f16(static_cast<const uint16_t*>(array)[i]));
    case kBF16: return static_cast<V>(from_bf16(static_cast<const uint16_t*>(array)[i]));
    case kI64: return static_cast<V>(static_cast<const int64_t*>(array)[i]);
    case kI32: return static_cast<V>(static_cast<const int32_t*>(array)[i]);
    case kI16: return static_cast<V>(static_cast<const int16_t*>(array)[i]);
    case kI8: return static_cast<V>(static_cast<const int8_t*>(array)[i]);
    case kU8: return static_cast<V>(static_cast<const uint8_t*>(array)[i]);
    case kBool: return static_cast<V>(static_cast<const uint8_t*>(array)[i]);
  }
  return V(0);
}
/// Sets element i of an array. Real numbers become integers by truncation, and true if they are not 0.
template <class V>
GALLEY_DEVICE void store(V value, void* array, int64_t i, Type type) {
  switch (type) {
    case kF32: static_cast<float*>(array)[i] = static_cast<float>(value); break;
    case kF64: static_cast<double*>(array)[i] = static_cast<double>(value); break;
    case kF16: static_cast<uint16_t*>(array)[i] = to_f16(static_cast<float>(value)); break;
    case kBF16: static_cast<uint16_t*>(array)[i] = to_bf16(static_cast<float>(value)); break;
    case kI64: static_cast<int64_t*>(array)[i] = static_cast<int64_t>(value); break;
    case kI32: static_cast<int32_t*>(array)[i] = static_cast<int32_t>(value); break;
    case kI16: static_cast<int16_t*>(array)[i] = static_cast<int16_t>(value); break;
    case kI8: static_cast<int8_t*>(array)[i] = static_cast<int8_t>(value); break;
    case kU8: static_cast<uint8_t*>(array)[i] = static_cast<uint8_t>(value); break;
    case kBool: static_cast<uint8_t*>(array)[i] = value != V(0) ? 1 : 0; break;
  }
}

/// Element i of an array in f32, bf16 or f16.
GALLEY_DEVICE float load_real(const void* array, int64_t i, Type type) {
  if (type == kF32) return static_cast<const float*>(array)[i];
  const uint16_t bits = static_cast<const uint16_t*>(array)[i];
  return type == kBF16 ? from_bf16(bits) : from_f16(bits);
}

GALLEY_DEVICE void store_real(float value, void* array, int64_t i, Type type) {
  if (type == kF32) {
    static_cast<float*>(array)[i] = value;
  } else {
    static_cast<uint16_t*>(array)[i] = type == kBF16 ? to_bf16(value) : to_f16(value);
  }
}

/// The first element of this thread, and the distance to its next one.
GALLEY_DEVICE int64_t first_element() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
GALLEY_DEVICE int64_t all_threads() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace galley::device
