// A stand-in for libcuda.so.1: the functions of vendor/cuda/driver.h over the memory and the streams of the sim device, and Galley's
// kernels compiled for the host. So the CUDA back end runs on machines without a GPU. It refuses what a driver refuses: calls without a
// context, unknown handles, launches beyond the limits.
//
// Environment: GALLEY_STAND_IN_SEED is the seed of the order of threads and blocks. GALLEY_STAND_IN_FAIL="cuMemAlloc:3=2" makes the third
// call of cuMemAlloc return error 2. GALLEY_STAND_IN_COUNTS names a file for the number of calls of each function, written at the end.

#include "libcore/vendor/cuda/driver.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "libcore/device/sim_device.h"
#include "tests/backends/cuda/stand_in/calls.h"
#include "tests/backends/cuda/stand_in/emulate.h"
#include "tests/backends/cuda/stand_in/kernels.h"

namespace galley::stand_in {
namespace {

using namespace galley::cuda;

constexpr Result kInvalidValue = 1, kInvalidContext = 201, kNotFound = 500, kLaunchFailed = 719;
constexpr Result kCaptureUnsupported = 900, kCaptureInvalid = 901, kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905,
                 kLastCaptureError = 908;

/// Counts calls, and makes one of them fail.
class Calls {
 public:
  Calls() {
    const char* text = std::getenv("GALLEY_STAND_IN_FAIL");
    if (text == nullptr) return;
    const std::string all = text;
    const size_t colon = all.find(':'), equals = all.find('=');
    if (colon == std::string::npos || equals == std::string::npos || equals < colon) return;
    fail(all.substr(0, colon), std::atoll(all.c_str() + colon + 1), std::atoi(all.c_str() + equals + 1));
  }
  void fail(const std::string& function, int64_t number, Result result) {
    const std::lock_guard lock(mutex_);
    failing_ = function;
    number_ = counts_[function] + number;
    result_ = result;
  }
  Result count(const char* function) {
    const std::lock_guard lock(mutex_);
    return ++counts_[function] == number_ && failing_ == function ? result_ : kSuccess;
  }
  int64_t of(const char* function) {
    const std::lock_guard lock(mutex_);
    return counts_[function];
  }
  void write_counts(const char* file) {
    const std::lock_guard lock(mutex_);
    std::ofstream out(file);
    for (const auto& [function, count] : counts_) out << function << ' ' << count << '\n';
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
  std::string failing_;
  int64_t number_ = -1;
  Result result_ = kSuccess;
};

Calls& calls() {
  static Calls& all = []() -> Calls& {
    std::atexit([] {
      if (const char* file = std::getenv("GALLEY_STAND_IN_COUNTS")) calls().write_counts(file);
    });
    return *new Calls;
  }();
  return all;
}

/// The names and blocks of all launches so far, a line each.
struct Launches {
  std::mutex mutex;
  std::string text;
  void add(const char* kernel, unsigned blocks) {
    const std::lock_guard lock(mutex);
    text.append(kernel).append(" ").append(std::to_string(blocks)).append("\n");
  }
};
Launches& launches() {
  static Launches& all = *new Launches;
  return all;
}

/// Sizes of blocks of memory, by address.
struct Sizes {
  std::mutex mutex;
  std::map<void*, int64_t> bytes;
};
Sizes& sizes() {
  static Sizes& all = *new Sizes;
  return all;
}

constexpr int64_t kAlignment = 256;
int context = 0;  // the only one: its address is its handle
thread_local Context current = nullptr;
std::mutex text_mutex;
std::string launch_error = "unspecified launch failure";

Result allocate(Memory& memory, void** address, size_t bytes) {
  void* block = memory.allocate(static_cast<int64_t>(bytes), kAlignment);
  if (block == nullptr) return kOutOfMemory;
  const std::lock_guard lock(sizes().mutex);
  sizes().bytes[block] = static_cast<int64_t>(bytes);
  *address = block;
  return kSuccess;
}
Result release(Memory& memory, void* address) {
  int64_t bytes = 0;
  {
    const std::lock_guard lock(sizes().mutex);
    const auto found = sizes().bytes.find(address);
    if (found == sizes().bytes.end()) return kInvalidValue;
    bytes = found->second;
    sizes().bytes.erase(found);
  }
  memory.free(address, bytes, kAlignment);
  return kSuccess;
}

/// Recorded work, for any stream.
using Work = std::vector<std::function<void(Stream&)>>;
/// How much a capture has recorded of a stream.
struct Reached {
  StreamHandle stream = nullptr;
  int64_t works = 0;
};
/// The capture of this thread: of one stream, and of those that have waited for its events.
struct Capture {
  StreamHandle stream = nullptr;  // null: there is none
  std::unique_ptr<Work> work;
  std::map<StreamHandle, int64_t> works;   // recorded, by stream
  std::map<StreamHandle, int64_t> joined;  // of other streams: those that the first one has waited for
  std::map<EventHandle, Reached> events;
  bool invalid = false;

  bool has(StreamHandle other) const { return stream != nullptr && works.contains(other); }
  /// Whether the first stream waits for all others at the end.
  bool is_joined() const {
    return std::all_of(works.begin(), works.end(), [&](const auto& entry) {
      const auto found = joined.find(entry.first);
      return entry.first == stream || (found != joined.end() && found->second == entry.second);
    });
  }
};
thread_local Capture capture;

/// Counts a call, and returns the error that is injected. An error of captures ends that of the thread.
Result counted(const char* function) {
  const Result injected = count_call(function);
  if (capture.stream != nullptr && injected >= kCaptureUnsupported && injected <= kLastCaptureError) capture.invalid = true;
  return injected;
}

Stream& of(StreamHandle stream) { return *reinterpret_cast<Stream*>(stream); }
Event& of(EventHandle event) { return *reinterpret_cast<Event*>(event); }

/// Runs the work on the stream, or records it.
Result submit(StreamHandle stream, std::function<void(Stream&)> work) {
  if (!capture.has(stream)) {
    work(of(stream));
  } else {
    ++capture.works[stream];
    capture.work->push_back(std::move(work));
  }
  return kSuccess;
}

std::atomic<uint64_t>& order_seed() {
  static std::atomic<uint64_t> value = [] {
    const char* text = std::getenv("GALLEY_STAND_IN_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{0};
  }();
  return value;
}

/// Counts events that nothing waits for: recorded again or destroyed before a stream, the host or a reader of times has waited.
class Waits {
 public:
  void recorded(EventHandle event) {
    const std::lock_guard lock(mutex_);
    missed_ += pending_.insert(event).second ? 0 : 1;
  }
  void waited(EventHandle event) {
    const std::lock_guard lock(mutex_);
    pending_.erase(event);
  }
  void destroyed(EventHandle event) {
    const std::lock_guard lock(mutex_);
    missed_ += static_cast<int64_t>(pending_.erase(event));
  }
  int64_t missed() {
    const std::lock_guard lock(mutex_);
    return missed_;
  }

 private:
  std::mutex mutex_;
  std::set<EventHandle> pending_;
  int64_t missed_ = 0;
};
Waits& waits() {
  static Waits& all = *new Waits;
  return all;
}

std::atomic<const WorkObserver*> work_observer = nullptr;
/// The work, of which the observer learns.
std::function<void()> observed(const std::string& kernel, std::function<void()> work) {
  const WorkObserver* observer = work_observer;
  if (observer == nullptr) return work;
  return [=, number = observer->enqueued()] {
    const uint64_t begin = observer->now_ns();
    work();
    observer->ran(number, kernel, -1, begin, observer->now_ns());
  };
}
/// The same of a copy, which takes no time here.
void observe_copy(size_t bytes) {
  const WorkObserver* observer = work_observer;
  if (observer == nullptr) return;
  const uint64_t now = observer->now_ns();
  observer->ran(observer->enqueued(), "", static_cast<int64_t>(bytes), now, now);
}

}  // namespace

void observe_work(const WorkObserver* observer) { work_observer = observer; }

cuda::Result enqueue(StreamHandle stream, const char* kernel, unsigned blocks, std::function<void()> work) {
  return submit(stream, [=](Stream& on) {
    launches().add(kernel, blocks);
    sim_enqueue(on, observed(kernel, work));
  });
}
cuda::Result count_call(const char* function) { return calls().count(function); }
double error_of_order() {
  static std::atomic<uint32_t> runs{0};
  return 4e-6 * ((runs.fetch_add(1) * 2654435761u >> 8) / 16777216.0);  // a number of 0..1 that differs from run to run
}

}  // namespace galley::stand_in

using namespace galley;
using namespace galley::stand_in;

#undef GALLEY_CALL
#define GALLEY_CALL(name) \
  if (const Result injected = counted(name); injected != 0) return injected
#define GALLEY_EXPORT extern "C" __attribute__((visibility("default")))
#define GALLEY_CALL_IN_CONTEXT(name) \
  GALLEY_CALL(name);                 \
  if (current == nullptr) return kInvalidContext

/// Calls that a thread must not make while it captures. They also end the capture.
#define GALLEY_CALL_OUTSIDE_CAPTURES(name) \
  GALLEY_CALL_IN_CONTEXT(name);            \
  if (capture.stream != nullptr) {         \
    capture.invalid = true;                \
    return kCaptureUnsupported;            \
  }

// For tests in the same process.
GALLEY_EXPORT int64_t galley_stand_in_calls(const char* function) { return calls().of(function); }
/// The launches since the last call. The text is valid until the next call.
GALLEY_EXPORT const char* galley_stand_in_launches() {
  static std::string taken;
  const std::lock_guard lock(launches().mutex);
  taken = std::move(launches().text);
  launches().text.clear();
  return taken.c_str();
}
/// How many recorded events nothing has waited for.
GALLEY_EXPORT int64_t galley_stand_in_missed_events() { return waits().missed(); }
/// The seed of the launches from now on (emulate::launch).
GALLEY_EXPORT void galley_stand_in_seed(uint64_t seed) { order_seed() = seed; }
GALLEY_EXPORT void galley_stand_in_fail(const char* function, int64_t number, Result result) { calls().fail(function, number, result); }

GALLEY_EXPORT Result cuInit(unsigned) {
  GALLEY_CALL("cuInit");
  return kSuccess;
}
GALLEY_EXPORT Result cuDriverGetVersion(int* version) {
  GALLEY_CALL("cuDriverGetVersion");
  *version = kNeededVersion;
  return kSuccess;
}
GALLEY_EXPORT Result cuGetErrorName(Result result, const char** name) {
  *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : result == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
  return kSuccess;
}
GALLEY_EXPORT Result cuGetErrorString(Result result, const char** text) {
  static thread_local std::string copy;
  if (result == kLaunchFailed) {
    const std::lock_guard lock(text_mutex);
    copy = launch_error;
    *text = copy.c_str();
  } else {
    *text = result == kOutOfMemory ? "out of memory" : result == kInvalidContext ? "invalid device context" : "an error of the stand-in";
  }
  return kSuccess;
}
GALLEY_EXPORT Result cuDeviceGetCount(int* count) {
  GALLEY_CALL("cuDeviceGetCount");
  *count = 1;
  return kSuccess;
}
GALLEY_EXPORT Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  GALLEY_CALL("cuDeviceGet");
  *device = ordinal;
  return ordinal == 0 ? kSuccess : kInvalidValue;
}
GALLEY_EXPORT Result cuDeviceGetName(char* name, int length, DeviceNumber) {
  std::strncpy(name, "stand-in", static_cast<size_t>(length));
  return kSuccess;
}
GALLEY_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  static const std::map<int, int> values{
      {kSharedMemoryPerBlock, 48 << 10}, {kMultiprocessors, 2}, {kComputeMajor, 9}, {kComputeMinor, 0}, {kSharedMemoryOptIn, 227 << 10}};
  const auto found = values.find(attribute);
  if (found == values.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}
GALLEY_EXPORT Result cuDeviceTotalMem(size_t* bytes, DeviceNumber) {
  *bytes = size_t{1} << 36;
  return kSuccess;
}
GALLEY_EXPORT Result cuDevicePrimaryCtxRetain(Context* made, DeviceNumber) {
  GALLEY_CALL("cuDevicePrimaryCtxRetain");
  *made = reinterpret_cast<Context>(&context);
  return kSuccess;
}
GALLEY_EXPORT Result cuCtxSetCurrent(Context made) {
  GALLEY_CALL("cuCtxSetCurrent");
  if (made != reinterpret_cast<Context>(&context)) return kInvalidContext;
  current = made;
  return kSuccess;
}
GALLEY_EXPORT Result cuMemGetInfo(size_t* free, size_t* total) {
  GALLEY_CALL_IN_CONTEXT("cuMemGetInfo");
  *free = *total = size_t{1} << 36;
  return kSuccess;
}
GALLEY_EXPORT Result cuMemAlloc(Address* address, size_t bytes) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuMemAlloc");
  void* block = nullptr;
  const Result result = allocate(sim_device().memory(), &block, bytes);
  *address = reinterpret_cast<Address>(block);
  return result;
}
GALLEY_EXPORT Result cuMemFree(Address address) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuMemFree");
  return release(sim_device().memory(), reinterpret_cast<void*>(address));
}
GALLEY_EXPORT Result cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuMemHostAlloc");
  return allocate(sim_device().host_memory(), address, bytes);
}
GALLEY_EXPORT Result cuMemFreeHost(void* address) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuMemFreeHost");
  return release(sim_device().host_memory(), address);
}
GALLEY_EXPORT Result cuMemcpyAsync(Address to, Address from, size_t bytes, StreamHandle stream) {
  GALLEY_CALL_IN_CONTEXT("cuMemcpyAsync");
  return submit(stream, [=](Stream& on) {
    observe_copy(bytes);
    on.copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), static_cast<int64_t>(bytes));
  });
}
GALLEY_EXPORT Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, StreamHandle stream) {
  GALLEY_CALL_IN_CONTEXT("cuMemsetD8Async");
  return submit(stream, [=](Stream& on) { on.fill(reinterpret_cast<void*>(to), value, static_cast<int64_t>(bytes)); });
}
GALLEY_EXPORT Result cuStreamCreate(StreamHandle* stream, unsigned) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuStreamCreate");
  *stream = reinterpret_cast<StreamHandle>(sim_device().make_stream().release());
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned, int) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuStreamCreateWithPriority");
  *stream = reinterpret_cast<StreamHandle>(sim_device().make_stream().release());
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamDestroy(StreamHandle stream) {
  delete &of(stream);
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamSynchronize(StreamHandle stream) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuStreamSynchronize");
  try {
    of(stream).synchronize();
  } catch (const std::exception& error) {
    const std::lock_guard lock(text_mutex);
    launch_error = error.what();
    return kLaunchFailed;
  }
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  GALLEY_CALL_IN_CONTEXT("cuStreamWaitEvent");
  waits().waited(event);
  const auto recorded = capture.events.find(event);
  if (recorded == capture.events.end() && !capture.has(stream)) {
    of(stream).wait(of(event));
    return kSuccess;
  }
  if (recorded == capture.events.end()) {
    capture.invalid = true;
    return kCaptureIsolation;
  }
  const Reached reached = recorded->second;
  ++capture.works[stream];
  if (stream == capture.stream) capture.joined[reached.stream] = std::max(capture.joined[reached.stream], reached.works);
  return kSuccess;
}
GALLEY_EXPORT Result cuEventCreate(EventHandle* event, unsigned) {
  GALLEY_CALL_IN_CONTEXT("cuEventCreate");
  *event = reinterpret_cast<EventHandle>(sim_device().make_event().release());
  return kSuccess;
}
GALLEY_EXPORT Result cuEventDestroy(EventHandle event) {
  waits().destroyed(event);
  delete &of(event);
  return kSuccess;
}
GALLEY_EXPORT Result cuEventRecord(EventHandle event, StreamHandle stream) {
  GALLEY_CALL_IN_CONTEXT("cuEventRecord");
  waits().recorded(event);
  if (capture.has(stream)) {
    capture.events[event] = {stream, capture.works[stream]};
    return kSuccess;
  }
  capture.events.erase(event);
  of(stream).record(of(event));
  return kSuccess;
}
GALLEY_EXPORT Result cuEventQuery(EventHandle event) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuEventQuery");
  if (!of(event).done()) return kNotReady;
  waits().waited(event);
  return kSuccess;
}
GALLEY_EXPORT Result cuEventSynchronize(EventHandle event) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuEventSynchronize");
  waits().waited(event);
  of(event).synchronize();
  return kSuccess;
}
GALLEY_EXPORT Result cuEventElapsedTime(float* milliseconds, EventHandle begin, EventHandle end) {
  for (const EventHandle event : {begin, end}) waits().waited(event);
  *milliseconds = static_cast<float>(static_cast<double>(of(end).time_ns() - of(begin).time_ns()) * 1e-6);
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamBeginCapture(StreamHandle stream, int mode) {
  GALLEY_CALL_IN_CONTEXT("cuStreamBeginCapture");
  if (capture.stream != nullptr || mode != kCaptureOfThread) return kInvalidValue;
  capture = {.stream = stream, .work = std::make_unique<Work>(), .works = {{stream, 0}}, .joined = {}, .events = {}};
  return kSuccess;
}
GALLEY_EXPORT Result cuStreamEndCapture(StreamHandle stream, GraphHandle* graph) {
  if (capture.stream != stream || stream == nullptr) return kCaptureUnmatched;
  Capture ended = std::move(capture);
  capture = {};
  GALLEY_CALL_IN_CONTEXT("cuStreamEndCapture");
  const Result result = ended.invalid ? kCaptureInvalid : ended.is_joined() ? kSuccess : kCaptureUnjoined;
  *graph = result != kSuccess ? nullptr : reinterpret_cast<GraphHandle>(ended.work.release());
  return result;
}
GALLEY_EXPORT Result cuGraphInstantiateWithFlags(GraphExecHandle* exec, GraphHandle graph, unsigned long long flags) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuGraphInstantiateWithFlags");
  if (graph == nullptr || flags != 0) return kInvalidValue;
  *exec = reinterpret_cast<GraphExecHandle>(new Work(*reinterpret_cast<Work*>(graph)));
  return kSuccess;
}
GALLEY_EXPORT Result cuGraphLaunch(GraphExecHandle exec, StreamHandle stream) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuGraphLaunch");
  for (const auto& work : *reinterpret_cast<Work*>(exec)) work(of(stream));
  return kSuccess;
}
GALLEY_EXPORT Result cuGraphDestroy(GraphHandle graph) {
  delete reinterpret_cast<Work*>(graph);
  return kSuccess;
}
GALLEY_EXPORT Result cuGraphExecDestroy(GraphExecHandle exec) {
  delete reinterpret_cast<Work*>(exec);
  return kSuccess;
}
GALLEY_EXPORT Result cuLibraryLoadData(LibraryHandle* library, const void* image, int*, void**, unsigned, int*, void**, unsigned) {
  GALLEY_CALL_OUTSIDE_CAPTURES("cuLibraryLoadData");
  *library = reinterpret_cast<LibraryHandle>(const_cast<void*>(image));
  return kSuccess;
}
GALLEY_EXPORT Result cuLibraryGetKernel(KernelHandle* kernel, LibraryHandle, const char* name) {
  GALLEY_CALL_IN_CONTEXT("cuLibraryGetKernel");
  const HostKernel* found = find_kernel(name);
  *kernel = reinterpret_cast<KernelHandle>(const_cast<HostKernel*>(found));
  return found != nullptr ? kSuccess : kNotFound;
}
GALLEY_EXPORT Result cuLaunchKernel(KernelHandle kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                    unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream, void** arguments,
                                    void**) {
  GALLEY_CALL_IN_CONTEXT("cuLaunchKernel");
  const auto* found = reinterpret_cast<const HostKernel*>(kernel);
  const dim3 grid{grid_x, grid_y, grid_z}, block{block_x, block_y, block_z};
  return submit(stream, [=, seed = order_seed().load(), body = found->bind(arguments)](Stream& on) {
    launches().add(found->name, grid.x);
    sim_enqueue(on, observed(found->name, [=] { emulate::launch(found->name, grid, block, shared_bytes, seed, body); }));
  });
}

GALLEY_EXPORT Result cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, void*) {
  static const std::map<std::string, void*> functions{
#define GALLEY_ROW(function, arguments) {#function, reinterpret_cast<void*>(&::function)},
      GALLEY_CUDA_DRIVER_FUNCTIONS(GALLEY_ROW)
#undef GALLEY_ROW
  };
  const auto found = functions.find(name);
  *function = found != functions.end() ? found->second : nullptr;
  return found != functions.end() ? kSuccess : kNotFound;
}
