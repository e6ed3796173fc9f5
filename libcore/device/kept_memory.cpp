#include "libcore/device/kept_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

namespace galley {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20, kPage = 4096, kLine = 64;

/// Memory of several arrays.
struct KeptPool {
  KeptPool(Memory& of, int64_t size) : memory(of), bytes(size), begin(static_cast<std::byte*>(of.allocate(size, kHugePage))) {}
  ~KeptPool() {
    if (begin != nullptr) memory.free(begin, bytes, kHugePage);
  }
  KeptPool(const KeptPool&) = delete;
  KeptPool& operator=(const KeptPool&) = delete;
  Memory& memory;
  int64_t bytes;
  std::byte* begin;
  int64_t used = 0;
};

thread_local std::shared_ptr<KeptPool> open_pool;  // of the KeptArrays of this thread

class KeptMemory : public Memory {
 public:
  explicit KeptMemory(Memory& host) : host_(host) {}

  void* allocate(int64_t bytes, int64_t alignment) override {
    if (bytes >= kHugePage) return host_.allocate(bytes, std::max(alignment, kHugePage));
    const int64_t taken = kept_bytes(bytes);
    if (open_pool == nullptr || taken == 0 || alignment > kLine || open_pool->bytes - open_pool->used < taken)
      return host_.allocate(bytes, alignment);
    std::byte* address = open_pool->begin + open_pool->used;
    open_pool->used += taken;
    const std::lock_guard lock(mutex_);
    arrays_[address] = open_pool;
    return address;
  }
  void free(void* memory, int64_t bytes, int64_t alignment) noexcept override {
    if (bytes >= kHugePage) return host_.free(memory, bytes, std::max(alignment, kHugePage));
    auto* address = static_cast<std::byte*>(memory);
    std::shared_ptr<KeptPool> pool;  // ends after the lock
    const std::lock_guard lock(mutex_);
    const auto found = arrays_.find(address);
    if (found == arrays_.end()) return host_.free(memory, bytes, alignment);
    pool = std::move(found->second);
    arrays_.erase(found);
    const int64_t first = (address - pool->begin + kPage - 1) / kPage * kPage, last = (address + bytes - pool->begin) / kPage * kPage;
    if (first < last) madvise(pool->begin + first, static_cast<size_t>(last - first), MADV_DONTNEED);
  }
  bool host_access() const override { return true; }

 private:
  Memory& host_;
  std::mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<KeptPool>> arrays_;  // where they lie; the last one frees a pool
};

class KeptDevice : public Device {
 public:
  std::string_view name() const override { return host_device().name(); }
  Memory& memory() override { return memory_; }
  Memory& host_memory() override { return host_device().host_memory(); }
  Stream& stream() override { return host_device().stream(); }
  std::unique_ptr<Stream> make_stream() override { return host_device().make_stream(); }
  std::unique_ptr<Event> make_event() override { return host_device().make_event(); }

 private:
  KeptMemory memory_{host_device().memory()};
};

}  // namespace

Device& device_of_kept_arrays(Device& device) {
  static auto* kept = new KeptDevice;  // arrays may outlive other objects of the program
  return &device == &host_device() ? *kept : device;
}

int64_t kept_bytes(int64_t bytes) { return bytes < kPage || bytes >= kHugePage ? 0 : (bytes + kLine - 1) / kLine * kLine; }

KeptArrays::KeptArrays(Device& device, int64_t bytes) {
  if (&device != &host_device() || bytes < kHugePage || open_pool != nullptr) return;
  auto pool = std::make_shared<KeptPool>(host_device().memory(), bytes);
  if (pool->begin == nullptr) return;  // arrays are allocated alone
  open_pool = std::move(pool);
  opened_ = true;
}

KeptArrays::~KeptArrays() {
  if (opened_) open_pool.reset();
}

}  // namespace galley
