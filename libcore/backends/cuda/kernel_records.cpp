#include "libcore/backends/cuda/kernel_records.h"

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/vendor/cuda/cupti.h"

namespace galley {
namespace {

namespace cupti = cuda::cupti;

/// What CUPTI has delivered, on threads of its own.
struct Delivered {
  std::mutex mutex;
  std::vector<KernelRecord> records;
  std::vector<uint32_t> correlations;     // of the records: the call that enqueued them
  std::map<uint32_t, int64_t> region_of;  // by call
};
Delivered& delivered() {
  static Delivered& all = *new Delivered;  // never destroyed, because threads of CUPTI may end later
  return all;
}

constexpr size_t kBufferBytes = size_t{1} << 20;

uint64_t steady_clock_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(cupti::kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

/// The name as it is in the source, without the arguments of the function.
std::string source_name(const char* name) {
  constexpr size_t kMost = 160;
  if (name == nullptr) return "kernel";
  int status = 0;
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 && plain != nullptr ? plain : name;
  std::free(plain);
  if (status == 0) {
    int depth = 0;  // of template arguments: the last parenthesis outside of them begins the parameters
    for (size_t i = text.size(); i-- > 0;) {
      depth += (text[i] == ')') - (text[i] == '(');
      if (text[i] == '(' && depth == 0) {
        text.resize(i);
        break;
      }
    }
  }
  if (text.size() > kMost) text.replace(kMost - 3, std::string::npos, "...");
  return text;
}

std::string copy_name(const cupti::CopyRecord& copy) {
  const char* way = copy.copy_kind == cupti::kToDevice ? " to the device" : copy.copy_kind == cupti::kToHost ? " to the host" : "";
  return cat("copy", way, ", ", human_bytes(static_cast<double>(copy.bytes)));
}

void take_record(const cupti::Record& record, Delivered& all) {
  const auto* memory = reinterpret_cast<const std::byte*>(&record);
  if (record.kind == cupti::kConcurrentKernel) {
    const auto& kernel = *reinterpret_cast<const cupti::KernelRecord*>(memory);
    all.records.push_back(
        {.name = source_name(kernel.name), .begin_ns = static_cast<int64_t>(kernel.start), .end_ns = static_cast<int64_t>(kernel.end)});
    all.correlations.push_back(kernel.correlation);
  } else if (record.kind == cupti::kMemcpy) {
    const auto& copy = *reinterpret_cast<const cupti::CopyRecord*>(memory);
    all.records.push_back(
        {.name = copy_name(copy), .is_copy = true, .begin_ns = static_cast<int64_t>(copy.start), .end_ns = static_cast<int64_t>(copy.end)});
    all.correlations.push_back(copy.correlation);
  } else if (record.kind == cupti::kMemset) {
    const auto& fill = *reinterpret_cast<const cupti::FillRecord*>(memory);
    all.records.push_back({.name = cat("fill, ", human_bytes(static_cast<double>(fill.bytes))),
                           .begin_ns = static_cast<int64_t>(fill.start),
                           .end_ns = static_cast<int64_t>(fill.end)});
    all.correlations.push_back(fill.correlation);
  } else if (record.kind == cupti::kExternalCorrelation) {
    const auto& correlation = *reinterpret_cast<const cupti::CorrelationRecord*>(memory);
    if (correlation.external_kind == cupti::kCustomCorrelation)
      all.region_of[correlation.correlation] = static_cast<int64_t>(correlation.external) - 1;
  }
}

void take_buffer(cuda::Context, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  Delivered& all = delivered();
  const std::lock_guard lock(all.mutex);
  cupti::Record* record = nullptr;
  while (valid_bytes > 0 && cupti::cupti().functions.cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == cupti::kSuccess)
    take_record(*record, all);
  std::free(buffer);
}

/// Calls of the driver and of the runtime carry the region, so they are recorded too.
constexpr int kKinds[] = {cupti::kExternalCorrelation, cupti::kDriverCall, cupti::kRuntimeCall, cupti::kMemcpy, cupti::kMemset,
                          cupti::kConcurrentKernel};

/// "" or what went wrong.
std::string problem_of(cupti::Result result, const char* call) {
  if (result == cupti::kSuccess) return "";
  const char* text = nullptr;
  cupti::cupti().functions.cuptiGetResultString(result, &text);
  return cat("CUPTI refuses ", call, ": ", text != nullptr ? text : "unknown error", " (", result, ")");
}

class CuptiRecords : public KernelRecords {
 public:
  ~CuptiRecords() override {
    for (const int kind : kKinds) functions().cuptiActivityDisable(kind);
    flush();
    clear();
  }
  /// "" or why it cannot record.
  std::string begin() {
    static const std::string kRegistered = [] {  // once for the process; times are of the steady clock from the first record on
      const std::string refused = problem_of(functions().cuptiActivityRegisterTimestampCallback(steady_clock_ns), "the clock of records");
      return refused.empty() ? problem_of(functions().cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "buffers") : refused;
    }();
    std::string problem = kRegistered;
    for (const int kind : kKinds)
      if (problem.empty()) problem = problem_of(functions().cuptiActivityEnable(kind), "the recording of kernels");
    return problem;
  }
  void enter(int64_t region) override {
    functions().cuptiActivityPushExternalCorrelationId(cupti::kCustomCorrelation, static_cast<uint64_t>(region) + 1);
  }
  void leave() override {
    uint64_t last = 0;
    functions().cuptiActivityPopExternalCorrelationId(cupti::kCustomCorrelation, &last);
  }
  std::vector<KernelRecord> take() override {
    flush();
    Delivered& all = delivered();
    std::vector<KernelRecord> records;
    {
      const std::lock_guard lock(all.mutex);
      for (size_t i = 0; i < all.records.size(); ++i) {
        const auto found = all.region_of.find(all.correlations[i]);
        if (found != all.region_of.end()) all.records[i].region = found->second;
      }
      records = std::move(all.records);
    }
    clear();
    std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    return records;
  }
  std::string source() const override { return "CUPTI " + cupti::cupti().state.version; }

 private:
  static const cupti::Functions& functions() { return cupti::cupti().functions; }
  static void flush() { functions().cuptiActivityFlushAll(cupti::kFlushForced); }
  static void clear() {
    Delivered& all = delivered();
    const std::lock_guard lock(all.mutex);
    all.records.clear();
    all.correlations.clear();
    all.region_of.clear();
  }
};

}  // namespace

std::unique_ptr<KernelRecords> record_cuda_kernels(std::string& why) {
  why = cupti::cupti().state.problem;
  if (!why.empty()) return nullptr;
  auto records = std::make_unique<CuptiRecords>();
  why = records->begin();
  if (!why.empty()) return nullptr;
  return records;
}

}  // namespace galley
