#pragma once
// Arena: scratch memory of a device. Executions that run one after the other (train step, evaluation) share it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libcore/device/device.h"

namespace galley {

/// Has the size that the largest execution needs. On the host: huge pages, touched in parallel before the first run.
class Arena {
 public:
  Arena() = default;
  explicit Arena(Device& device) : device_(&device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Sets the device before memory is allocated; the default is the host's. All programs that share an arena run on one
  /// device.
  void use(Device& device);
  /// Provides at least `bytes`; the contents are lost if it grows. Throws Error (kResource) if memory is exhausted.
  void reserve(int64_t bytes);
  /// Address on the device.
  std::byte* address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Changes whenever the address does.
  uint64_t generation() const { return generation_; }

  /// An execution enqueues its run. InternalError where another one does so at the same time: their values would overlap.
  class Use {
   public:
    explicit Use(Arena& arena);
    ~Use() { arena_.in_use_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Arena& arena_;
  };

 private:
  void release();

  Device* device_ = &host_device();
  std::byte* address_ = nullptr;
  int64_t bytes_ = 0, alignment_ = 0;
  uint64_t generation_ = 0;
  std::atomic<bool> in_use_{false};
};

}  // namespace galley
