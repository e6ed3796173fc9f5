// A stand-in for libcupti.so.13: records of what the stand-in driver runs, in buffers of the caller.

#include "libcore/vendor/cuda/cupti.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/backends/cuda/stand_in/calls.h"

#define GALLEY_EXPORT extern "C" __attribute__((visibility("default")))

namespace galley::stand_in {
namespace {

using namespace galley::cuda;

constexpr cupti::Result kInvalidKind = 21, kQueueEmpty = 34;

/// A kernel or copy that has run.
struct Ran {
  uint32_t number;
  std::string kernel;
  int64_t bytes;
  uint64_t begin, end;
};

struct Profiler {
  std::mutex mutex;
  cupti::Timestamp clock = nullptr;
  cupti::BufferRequest request = nullptr;
  cupti::BufferComplete complete = nullptr;
  std::set<int> enabled;
  std::vector<Ran> ran;
  std::map<uint32_t, uint64_t> external;  // by the number of the call
  std::set<std::string> names;            // records refer to them
  uint32_t calls = 0;
};
Profiler& profiler() {
  static Profiler& one = *new Profiler;
  return one;
}
thread_local std::vector<uint64_t> regions;

uint32_t call_enqueued() {
  Profiler& all = profiler();
  const std::lock_guard lock(all.mutex);
  const uint32_t number = ++all.calls;
  // As CUPTI: calls carry the region, so they must be recorded.
  const bool carried = all.enabled.contains(cupti::kExternalCorrelation) && all.enabled.contains(cupti::kDriverCall);
  if (!regions.empty() && carried) all.external[number] = regions.back();
  return number;
}
void call_ran(uint32_t number, const std::string& kernel, int64_t bytes, uint64_t begin, uint64_t end) {
  Profiler& all = profiler();
  const std::lock_guard lock(all.mutex);
  if (all.enabled.contains(bytes < 0 ? cupti::kConcurrentKernel : cupti::kMemcpy)) all.ran.push_back({number, kernel, bytes, begin, end});
}
uint64_t clock_now() {
  Profiler& all = profiler();
  const std::lock_guard lock(all.mutex);
  return all.clock();
}
constexpr WorkObserver kObserver{call_enqueued, call_ran, clock_now};

/// The records of one kernel or copy, as they are in a buffer.
std::string records_of(Profiler& all, const Ran& ran) {
  std::string bytes;
  const auto add = [&](const auto& record) { bytes.append(reinterpret_cast<const char*>(&record), sizeof record); };
  if (const auto found = all.external.find(ran.number); found != all.external.end()) {
    add(cupti::CorrelationRecord{cupti::kExternalCorrelation, cupti::kCustomCorrelation, found->second, ran.number, 0});
  }
  if (ran.bytes < 0) {
    cupti::KernelRecord record{};
    record.kind = cupti::kConcurrentKernel;
    record.start = ran.begin;
    record.end = ran.end;
    record.correlation = ran.number;
    record.name = all.names.insert(ran.kernel).first->c_str();
    add(record);
  } else {
    cupti::CopyRecord record{};
    record.kind = cupti::kMemcpy;
    record.copy_kind = cupti::kToDevice;
    record.bytes = static_cast<uint64_t>(ran.bytes);
    record.start = ran.begin;
    record.end = ran.end;
    record.correlation = ran.number;
    add(record);
  }
  return bytes;
}

size_t size_of(int kind) {
  return kind == cupti::kExternalCorrelation ? sizeof(cupti::CorrelationRecord)
         : kind == cupti::kConcurrentKernel  ? sizeof(cupti::KernelRecord)
                                             : sizeof(cupti::CopyRecord);
}

}  // namespace
}  // namespace galley::stand_in

using namespace galley;
using namespace galley::stand_in;

GALLEY_EXPORT cupti::Result cuptiGetVersion(uint32_t* version) {
  *version = 130001;
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiGetResultString(cupti::Result, const char** text) {
  *text = "an error of the stand-in";
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityRegisterCallbacks(cupti::BufferRequest request, cupti::BufferComplete complete) {
  profiler().request = request;
  profiler().complete = complete;
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityRegisterTimestampCallback(cupti::Timestamp clock) {
  const std::lock_guard lock(profiler().mutex);
  profiler().clock = clock;
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityEnable(int kind) {
  GALLEY_CALL("cuptiActivityEnable");
  Profiler& all = profiler();
  const std::lock_guard lock(all.mutex);
  if (all.request == nullptr || all.clock == nullptr) return kInvalidKind;
  all.enabled.insert(kind);
  observe_work(&kObserver);
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityDisable(int kind) {
  Profiler& all = profiler();
  const std::lock_guard lock(all.mutex);
  all.enabled.erase(kind);
  if (all.enabled.empty()) observe_work(nullptr);
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityFlushAll(uint32_t) {
  GALLEY_CALL("cuptiActivityFlushAll");
  Profiler& all = profiler();
  std::vector<std::pair<uint8_t*, size_t>> buffers;  // with their valid bytes
  {
    const std::lock_guard lock(all.mutex);
    size_t room = 0;
    for (const Ran& ran : all.ran) {
      const std::string bytes = records_of(all, ran);
      if (buffers.empty() || buffers.back().second + bytes.size() > room) {
        size_t most = 0;
        all.request(&buffers.emplace_back().first, &room, &most);
      }
      std::memcpy(buffers.back().first + buffers.back().second, bytes.data(), bytes.size());
      buffers.back().second += bytes.size();
    }
    all.ran.clear();
    all.external.clear();
  }
  for (const auto& [buffer, valid] : buffers) all.complete(nullptr, 0, buffer, valid, valid);
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, cupti::Record** record) {
  uint8_t* next = *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + size_of((*record)->kind);
  if (next >= buffer + valid_bytes) return cupti::kMaxLimitReached;
  *record = reinterpret_cast<cupti::Record*>(next);
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityGetNumDroppedRecords(cuda::Context, uint32_t, size_t* dropped) {
  *dropped = 0;
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityPushExternalCorrelationId(int, uint64_t id) {
  GALLEY_CALL("cuptiActivityPushExternalCorrelationId");
  regions.push_back(id);
  return cupti::kSuccess;
}
GALLEY_EXPORT cupti::Result cuptiActivityPopExternalCorrelationId(int, uint64_t* last) {
  if (regions.empty()) return kQueueEmpty;
  *last = regions.back();
  regions.pop_back();
  return cupti::kSuccess;
}
