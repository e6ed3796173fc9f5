#pragma once
// Runs CUDA kernels on the host (x86-64): the blocks of a launch one after another, the threads of a block as fibers of one thread.
//
// It finds wrong indices (AddressSanitizer: shared arrays and the sim device's heap have protected borders), a missing __syncthreads and
// other races inside a block or between blocks (ThreadSanitizer, to which each fiber is a thread that only barriers, fences and atomics
// order; without it, the order of fibers and blocks changes with the seed, and shared memory starts as NaN), barriers and shuffles that not
// every thread of the group reaches, and launches beyond the limits of a device. It cannot show coalescing, bank conflicts, occupancy or a
// memory order that is weaker than the host's. Only the subset of kernels/portable.h exists.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local uint3 threadIdx, blockIdx;
inline thread_local dim3 blockDim, gridDim;

namespace emulate {

/// Runs `body` for every thread of the grid. `seed` 0: threads and blocks in order; 1: in reverse order; else in random orders. Throws
/// std::runtime_error if the launch exceeds the limits of a device, or a barrier or shuffle is not reached by every thread of its group;
/// `kernel` names it in messages.
void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, const std::function<void()>& body);

enum class Group : uint8_t { kNone, kBlock, kWarp };
/// Waits until every thread of the group is at the barrier of that place.
void barrier(Group group, const char* place);
/// The value of another lane of the warp: lane ^ n, or with `down` lane + n, or the own value beyond the warp.
uint32_t exchange(uint32_t value, unsigned n, bool down, const char* place);
template <class T>
T exchange_as(T value, unsigned n, bool down, const char* place) {
  static_assert(sizeof(T) == 4 && std::is_trivially_copyable_v<T>);
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, 4);
  bits = exchange(bits, n, down, place);
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
/// The memory of a shared array of the running block, known by its place in the source.
void* shared(size_t bytes, const char* place);
void fence();

float atomic_add(float* to, float value);
unsigned atomic_add(unsigned* to, unsigned value);
unsigned long long atomic_add(unsigned long long* to, unsigned long long value);

}  // namespace emulate

#define GALLEY_EMULATE_TEXT2(x) #x
#define GALLEY_EMULATE_TEXT(x) GALLEY_EMULATE_TEXT2(x)
#define GALLEY_EMULATE_PLACE __FILE__ ":" GALLEY_EMULATE_TEXT(__LINE__)

#define GALLEY_DEVICE inline
#define GALLEY_KEEP_ORDER()
#define GALLEY_UNROLL
#define GALLEY_UNROLL_BY_4
#define GALLEY_NO_UNROLL
#define GALLEY_KERNEL(name, parameters) inline void name parameters
#define GALLEY_KERNEL_OF(blocks, name, parameters) GALLEY_KERNEL(name, parameters)
#define GALLEY_SHARED(type, name, count) type* name = static_cast<type*>(emulate::shared(sizeof(type) * (count), GALLEY_EMULATE_PLACE))
#define __syncthreads() emulate::barrier(emulate::Group::kBlock, GALLEY_EMULATE_PLACE)
#define __syncwarp() emulate::barrier(emulate::Group::kWarp, GALLEY_EMULATE_PLACE)
#define __shfl_xor_sync(mask, value, n) emulate::exchange_as(value, static_cast<unsigned>(n), false, GALLEY_EMULATE_PLACE)
#define __shfl_down_sync(mask, value, n) emulate::exchange_as(value, static_cast<unsigned>(n), true, GALLEY_EMULATE_PLACE)
#define __threadfence() emulate::fence()
#define atomicAdd(to, value) emulate::atomic_add(to, value)
