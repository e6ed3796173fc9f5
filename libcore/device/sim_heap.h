#pragma once
// Memory of the sim device.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "libcore/device/memory.h"

namespace galley {

/// A reserved range of addresses. Every access faults unless work of the device is executing.
class SimHeap : public Memory {
 public:
  /// `drain` waits for the device's work; it is called before memory is freed.
  explicit SimHeap(std::function<void()> drain);

  void* allocate(int64_t bytes, int64_t alignment) override;
  void free(void* address, int64_t bytes, int64_t alignment) noexcept override;
  bool host_access() const override { return false; }

  bool holds(const void* address) const { return address >= begin_ && address < begin_ + kReserved; }
  /// Enables and disables access. Calls may nest, also across threads.
  void open();
  void close();

 private:
  static constexpr int64_t kReserved = int64_t{1} << 36;
  void protect(int64_t from, int64_t to, bool access);

  std::function<void()> drain_;
  std::byte* begin_ = nullptr;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; no two are adjacent
  int64_t used_ = 0;                 // the highest offset allocated so far: `open` allows access up to it
  int open_ = 0;
};

/// Host memory whose addresses the device knows, as a driver knows pinned memory. `drain` as in SimHeap.
class SimHostMemory : public Memory {
 public:
  explicit SimHostMemory(std::function<void()> drain) : drain_(std::move(drain)) {}
  void* allocate(int64_t bytes, int64_t alignment) override;
  void free(void* address, int64_t bytes, int64_t alignment) noexcept override;
  bool host_access() const override { return true; }
  bool holds(const void* address) const;

 private:
  std::function<void()> drain_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, int64_t> blocks_;  // address -> bytes
};

}  // namespace galley
