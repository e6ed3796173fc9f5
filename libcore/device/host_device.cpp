#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/device/device.h"

namespace galley {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20, kPage = 4096;

/// Maps memory and advises huge pages if the alignment is at least one huge page; otherwise uses the C library. What is left over of the
/// last huge page is not mapped, so that it takes no memory.
class HostMemory : public Memory {
 public:
  void* allocate(int64_t bytes, int64_t alignment) override {
    bytes = std::max<int64_t>(bytes, 1);
    return alignment >= kHugePage ? map(bytes, alignment)
                                  : std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded(bytes, alignment)));
  }
  void free(void* address, int64_t bytes, int64_t alignment) noexcept override {
    if (alignment >= kHugePage) {
      munmap(address, static_cast<size_t>(rounded(std::max<int64_t>(bytes, 1), kPage)));
    } else {
      std::free(address);
    }
  }
  bool host_access() const override { return true; }

 private:
  static int64_t rounded(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

  /// The system aligns mappings to pages only. Maps `alignment` more bytes and unmaps the parts before and after the aligned block.
  static void* map(int64_t bytes, int64_t alignment) {
    const int64_t size = rounded(bytes, kPage), mapped = size + alignment;
    void* memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* begin = static_cast<std::byte*>(memory);
    const auto address = reinterpret_cast<int64_t>(memory);
    std::byte* block = begin + (rounded(address, alignment) - address);
    if (block > begin) munmap(begin, static_cast<size_t>(block - begin));
    if (block + size < begin + mapped) munmap(block + size, static_cast<size_t>(begin + mapped - (block + size)));
    madvise(block, static_cast<size_t>(size), MADV_HUGEPAGE);  // only advice: without huge pages, access is slower
    return block;
  }
};

class HostEvent : public Event {
 public:
  bool done() const override { return true; }
  void synchronize() override {}
  int64_t time_ns() override { return time_ns_; }
  void mark() {
    time_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  int64_t time_ns_ = 0;
};

class HostStream : public Stream {
 public:
  Device& device() const override { return host_device(); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));  // the address of an empty array may be null
  }
  void fill(void* to, uint8_t value, int64_t bytes) override {
    if (bytes > 0) std::memset(to, value, static_cast<size_t>(bytes));
  }
  void record(Event& event) override {
    auto* mark = dynamic_cast<HostEvent*>(&event);
    GALLEY_ASSERT(mark != nullptr, "the event belongs to another device");
    mark->mark();
  }
  void wait(const Event& event) override {
    GALLEY_ASSERT(dynamic_cast<const HostEvent*>(&event) != nullptr, "the event belongs to another device");
  }
  void synchronize() override {}
};

class HostDevice : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  Memory& memory() override { return memory_; }
  Memory& host_memory() override { return memory_; }
  Stream& stream() override { return stream_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }

 private:
  HostMemory memory_;
  HostStream stream_;
};

}  // namespace

Device& host_device() {
  static HostDevice device;
  return device;
}

Stream& host_stream() { return host_device().stream(); }

}  // namespace galley
