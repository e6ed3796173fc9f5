#pragma once
// Memory: allocates memory of one kind.

#include <cstdint>

namespace galley {

/// One kind of memory of a device. May be called from any thread.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Allocates at least `bytes` bytes, uninitialized, at a multiple of `alignment` (a power of two); nullptr if memory is exhausted. Host
  /// memory uses huge pages if `alignment` is at least 2 MiB.
  virtual void* allocate(int64_t bytes, int64_t alignment) = 0;
  /// Frees memory from `allocate`, with the same `bytes` and `alignment`. First waits for work of the device that may still use it.
  virtual void free(void* address, int64_t bytes, int64_t alignment) noexcept = 0;
  /// Whether the host can read and write it by address.
  virtual bool host_access() const = 0;
  /// The most bytes that were allocated at once since the start or reset_peak; 0 of host memory, which the operating system counts.
  virtual int64_t peak_bytes() const { return 0; }
  virtual void reset_peak() {}
};

}  // namespace galley
