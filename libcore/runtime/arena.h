#pragma once
// Arena: scratch memory of a device. Executions that run one after the other (training step, evaluation) share it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "libcore/device/device.h"

namespace galley {

/// Memory of the size that the largest execution needs. On the host it uses huge pages, which threads touch in parallel before the first
/// run.
class Arena {
 public:
  Arena() = default;
  explicit Arena(Device& device) : device_(&device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Sets the device before memory is allocated; the default is the host's device. All programs that share an arena run on one device.
  void use(Device& device);
  /// Provides at least `bytes` bytes, and `common` bytes that ranks may share; the contents are lost if the arena grows. Throws Error
  /// (kResource) if memory is exhausted.
  void reserve(int64_t bytes, int64_t common = 0);
  /// Uses this memory of the host, which is aligned to 64 bytes, until more is needed.
  void adopt(std::shared_ptr<std::byte> memory, int64_t bytes);
  /// The same for memory that is common to several ranks.
  void adopt_common(std::shared_ptr<std::byte> memory, int64_t bytes);
  std::byte* common() const { return common_.get(); }
  /// Address on the device.
  std::byte* address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Increases whenever the address changes.
  uint64_t generation() const { return generation_; }

  /// Marks the arena as used while an execution enqueues its run. Throws InternalError if another execution uses it, because their values
  /// would overlap.
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
  std::shared_ptr<std::byte> adopted_;  // null: `address_` is the device's
  std::shared_ptr<std::byte> common_;
  int64_t common_bytes_ = 0;
  uint64_t generation_ = 0;
  std::atomic<bool> in_use_{false};
};

}  // namespace galley
