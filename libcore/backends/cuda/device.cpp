#include "libcore/backends/cuda/device.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

using cuda::check;
using cuda::driver;

class Gpu;

/// Blocks by their first address, to find the block of an address inside.
class Blocks {
 public:
  void add(void* address, int64_t bytes, void* allocated) {
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(address)] = {bytes, allocated};
  }
  /// Removes a block, and returns what the driver allocated for it.
  void* remove(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<std::byte*>(address));
    GALLEY_ASSERT(found != blocks_.end(), "freed memory that was not allocated");
    void* allocated = found->second.allocated;
    blocks_.erase(found);
    return allocated;
  }
  bool holds(const void* address) const {
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(address)));
    if (after == blocks_.begin()) return false;
    --after;
    return static_cast<const std::byte*>(address) < after->first + after->second.bytes;
  }

 private:
  struct Block {
    int64_t bytes;
    void* allocated;
  };
  mutable std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
};

/// Device memory, or pinned host memory. A block is larger than asked for where the driver's alignment is not enough.
class GpuMemory : public Memory {
 public:
  GpuMemory(const CudaDevice& device, bool host) : device_(device), host_(host) {}

  void* allocate(int64_t bytes, int64_t alignment) override {
    constexpr int64_t kAlignment = 256;  // of the driver
    bytes = std::max<int64_t>(bytes, 1);
    const int64_t size = bytes + (alignment > kAlignment ? alignment : 0);
    device_.make_current();
    void* allocated = nullptr;
    cuda::Address address = 0;
    const cuda::Result result = host_ ? driver().cuMemHostAlloc(&allocated, static_cast<size_t>(size), cuda::kPortableHostMemory)
                                      : driver().cuMemAlloc(&address, static_cast<size_t>(size));
    if (result == cuda::kOutOfMemory) return nullptr;
    check(result, cat("allocating ", human_bytes(static_cast<double>(size)), host_ ? " of pinned memory" : ""));
    if (!host_) allocated = reinterpret_cast<void*>(address);
    const auto begin = (reinterpret_cast<uintptr_t>(allocated) + static_cast<uintptr_t>(alignment) - 1) /
                       static_cast<uintptr_t>(alignment) * static_cast<uintptr_t>(alignment);
    auto* block = reinterpret_cast<void*>(begin);
    blocks_.add(block, bytes, allocated);
    const int64_t used = used_ += bytes;
    for (int64_t peak = peak_; used > peak && !peak_.compare_exchange_weak(peak, used);) continue;
    return block;
  }
  void free(void* address, int64_t bytes, int64_t) noexcept override {
    if (address == nullptr) return;
    void* allocated = blocks_.remove(address);
    used_ -= std::max<int64_t>(bytes, 1);
    if (!device_.try_current()) return;  // of a lost GPU, which has no memory any more
    // The driver waits for work that may use the memory. An error of that work is reported by its stream.
    if (host_) {
      driver().cuMemFreeHost(allocated);
    } else {
      driver().cuMemFree(reinterpret_cast<cuda::Address>(allocated));
    }
  }
  bool host_access() const override { return host_; }
  int64_t peak_bytes() const override { return host_ ? 0 : peak_.load(); }
  void reset_peak() override { peak_ = used_.load(); }
  bool holds(const void* address) const { return blocks_.holds(address); }

 private:
  const CudaDevice& device_;
  bool host_;
  Blocks blocks_;
  std::atomic<int64_t> used_ = 0, peak_ = 0;
};

/// Times are measured from an event on a stream that is idle otherwise. A float of milliseconds is exact to a microsecond only for some
/// seconds, so there is a new one when the last is old.
struct Origin {
  std::shared_ptr<cuda::CUevent_st> event;  // shared with the events whose times are measured from it
  int64_t ns = 0;                           // of the host's steady clock when the first one was read, and since then by events
};

class GpuEvent : public Event {
 public:
  explicit GpuEvent(Gpu& gpu);
  ~GpuEvent() override;
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  bool done() const override;
  void synchronize() override;
  int64_t time_ns() override;
  void mark(cuda::StreamHandle stream);
  cuda::EventHandle handle() const { return handle_; }

 private:
  Gpu& gpu_;
  cuda::EventHandle handle_ = nullptr;
  Origin origin_;
};

class GpuStream : public Stream {
 public:
  explicit GpuStream(Gpu& gpu);
  ~GpuStream() override;
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  Device& device() const override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, uint8_t value, int64_t bytes) override;
  void record(Event& event) override { of_cuda(event).mark(handle_); }
  void wait(const Event& event) override;
  void synchronize() override;
  cuda::StreamHandle handle() const { return handle_; }

 private:
  static GpuEvent& of_cuda(Event& event) {
    auto* mark = dynamic_cast<GpuEvent*>(&event);
    GALLEY_ASSERT(mark != nullptr, "the event belongs to another device");
    return *mark;
  }

  Gpu& gpu_;
  cuda::StreamHandle handle_ = nullptr;
  cuda::EventHandle idle_ = nullptr;  // when the stream has done all of its work
};

class Gpu : public CudaDevice {
 public:
  explicit Gpu(int index) : memory_(*this, false), host_memory_(*this, true) {
    const int count = count_of_gpus();
    if (index >= count) {
      throw Error(ErrorCode::kResource,
                  cat("device cuda:", index, " does not exist: there ", count == 1 ? "is " : "are ", counted(count, "GPU")))
          .key("device")
          .suggest(count > 0 ? cat("device=cuda:", count - 1) : "device=cpu computes on the processor");
    }
    cuda::DeviceNumber device = 0;
    check(driver().cuDeviceGet(&device, index), cat("opening GPU ", index));
    read_facts(device);
    check(driver().cuDevicePrimaryCtxRetain(&context_, device), cat("starting GPU ", index));
  }

  std::string_view name() const override { return "cuda"; }
  Memory& memory() override { return memory_; }
  Memory& host_memory() override { return host_memory_; }
  Stream& stream() override {
    const std::lock_guard lock(mutex_);
    if (first_ == nullptr) first_ = make_stream();
    return *first_;
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<GpuStream>(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<GpuEvent>(*this); }

  const CudaFacts& facts() const override { return facts_; }
  void make_current() const override { check(driver().cuCtxSetCurrent(context_), "choosing the GPU"); }
  bool try_current() const noexcept override { return driver().cuCtxSetCurrent(context_) == cuda::kSuccess; }
  void watch(std::function<void()> check) override {
    const std::lock_guard lock(mutex_);
    watch_ = std::move(check);
    watched_ = watch_ != nullptr;
  }
  bool watched() const { return watched_; }
  /// Returns when the event has happened. False: nothing is watched, and it may not have.
  bool watched_until(cuda::EventHandle event) {
    if (!watched_) return false;
    std::function<void()> check_others;
    {
      const std::lock_guard lock(mutex_);
      check_others = watch_;
    }
    for (int64_t times = 0;; ++times) {
      const cuda::Result result = driver().cuEventQuery(event);
      if (result != cuda::kNotReady) {
        check(result, "waiting for an event");
        return true;
      }
      if (check_others) check_others();
      constexpr int64_t kSpins = 100;
      if (times > kSpins) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  /// Whether streams copy to or from this address without the help of the host.
  bool holds(const void* address) const { return memory_.holds(address) || host_memory_.holds(address); }

  /// The newest origin of times, not older than a few seconds.
  Origin origin() {
    constexpr auto kOldest = std::chrono::seconds(2);
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (origin_.event != nullptr && now - origin_time_ < kOldest) return origin_;
    if (clock_ == nullptr) check(driver().cuStreamCreate(&clock_, cuda::kNonBlockingStream), "creating a stream");
    cuda::EventHandle event = nullptr;
    check(driver().cuEventCreate(&event, 0), "creating an event");
    Origin next{.event = {event, [](cuda::EventHandle unused) { driver().cuEventDestroy(unused); }}};
    check(driver().cuEventRecord(event, clock_), "recording an event");
    check(driver().cuEventSynchronize(event), "waiting for an event");
    const auto read = std::chrono::steady_clock::now().time_since_epoch();
    next.ns = origin_.event != nullptr ? origin_.ns + elapsed_ns(origin_.event.get(), event)
                                       : std::chrono::duration_cast<std::chrono::nanoseconds>(read).count();
    origin_ = next;
    origin_time_ = now;
    return origin_;
  }
  static int64_t elapsed_ns(cuda::EventHandle begin, cuda::EventHandle end) {
    float milliseconds = 0;
    check(driver().cuEventElapsedTime(&milliseconds, begin, end), "reading the time of an event");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  void read_facts(cuda::DeviceNumber device) {
    char name[256] = {};
    check(driver().cuDeviceGetName(name, sizeof name - 1, device), "reading the name of a GPU");
    facts_.name = name;
    const auto attribute = [&](int number) {
      int value = 0;
      check(driver().cuDeviceGetAttribute(&value, number, device), "reading an attribute of a GPU");
      return value;
    };
    facts_.capability = 10 * attribute(cuda::kComputeMajor) + attribute(cuda::kComputeMinor);
    facts_.processors = attribute(cuda::kMultiprocessors);
    facts_.shared_bytes = attribute(cuda::kSharedMemoryOptIn);
    size_t bytes = 0;
    check(driver().cuDeviceTotalMem(&bytes, device), "reading the memory of a GPU");
    facts_.memory = static_cast<int64_t>(bytes);
  }

  CudaFacts facts_;
  cuda::Context context_ = nullptr;
  GpuMemory memory_, host_memory_;
  std::mutex mutex_;
  std::unique_ptr<Stream> first_;
  std::function<void()> watch_;
  std::atomic<bool> watched_ = false;
  cuda::StreamHandle clock_ = nullptr;
  Origin origin_;
  std::chrono::steady_clock::time_point origin_time_;
};

GpuEvent::GpuEvent(Gpu& gpu) : gpu_(gpu) {
  gpu_.make_current();
  check(driver().cuEventCreate(&handle_, 0), "creating an event");
}
GpuEvent::~GpuEvent() { driver().cuEventDestroy(handle_); }

bool GpuEvent::done() const {
  gpu_.make_current();
  const cuda::Result result = driver().cuEventQuery(handle_);
  if (result != cuda::kNotReady) check(result, "asking for an event");
  return result == cuda::kSuccess;
}
void GpuEvent::synchronize() {
  gpu_.make_current();
  if (!gpu_.watched_until(handle_)) check(driver().cuEventSynchronize(handle_), "waiting for an event");
}
int64_t GpuEvent::time_ns() {
  if (origin_.event == nullptr) return 0;
  synchronize();
  return origin_.ns + Gpu::elapsed_ns(origin_.event.get(), handle_);
}
void GpuEvent::mark(cuda::StreamHandle stream) {
  gpu_.make_current();
  origin_ = gpu_.origin();
  check(driver().cuEventRecord(handle_, stream), "recording an event");
}

GpuStream::GpuStream(Gpu& gpu) : gpu_(gpu) {
  gpu_.make_current();
  check(driver().cuStreamCreate(&handle_, cuda::kNonBlockingStream), "creating a stream");
}
GpuStream::~GpuStream() {
  driver().cuStreamSynchronize(handle_);
  if (idle_ != nullptr) driver().cuEventDestroy(idle_);
  driver().cuStreamDestroy(handle_);
}

Device& GpuStream::device() const { return gpu_; }

void GpuStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  gpu_.make_current();
  check(driver().cuMemcpyAsync(reinterpret_cast<cuda::Address>(to), reinterpret_cast<cuda::Address>(from), static_cast<size_t>(bytes),
                               handle_),
        cat("copying ", counted(bytes, "byte")));
  if (!gpu_.holds(to) || !gpu_.holds(from)) synchronize();
}
void GpuStream::fill(void* to, uint8_t value, int64_t bytes) {
  if (bytes <= 0) return;
  gpu_.make_current();
  check(driver().cuMemsetD8Async(reinterpret_cast<cuda::Address>(to), value, static_cast<size_t>(bytes), handle_), "filling memory");
}
void GpuStream::wait(const Event& event) {
  gpu_.make_current();
  check(driver().cuStreamWaitEvent(handle_, of_cuda(const_cast<Event&>(event)).handle(), 0), "waiting for an event");
}
void GpuStream::synchronize() {
  gpu_.make_current();
  if (gpu_.watched()) {
    if (idle_ == nullptr) check(driver().cuEventCreate(&idle_, cuda::kEventWithoutTime), "creating an event");
    check(driver().cuEventRecord(idle_, handle_), "recording an event");
    gpu_.watched_until(idle_);
  }
  check(driver().cuStreamSynchronize(handle_), "running the kernels of a stream");
}

}  // namespace

int count_of_gpus() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "counting GPUs");
  return count;
}

CudaDevice& cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, Gpu*>& gpus = *new std::map<int, Gpu*>;  // never destroyed, because static objects may hold arrays on them
  const std::lock_guard lock(mutex);
  Gpu*& gpu = gpus[index];
  if (gpu == nullptr) gpu = new Gpu(index);
  return *gpu;
}

cuda::StreamHandle cuda_stream(Stream& stream) {
  auto* gpu = dynamic_cast<GpuStream*>(&stream);
  GALLEY_ASSERT(gpu != nullptr, "the stream belongs to device ", stream.device().name(), ", not cuda");
  return gpu->handle();
}

}  // namespace galley
