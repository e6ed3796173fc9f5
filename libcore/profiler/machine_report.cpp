#include "libcore/profiler/machine_report.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/profiler/statistics.h"
#include "libcore/runtime/bursts.h"
#include "libcore/runtime/machine.h"

namespace galley {
namespace {

/// Reads an array many times to measure the bandwidth of a cache level. Four accumulators are OR-ed with the data, one cycle each, so that
/// they are not the limit. There is one function per instruction set because compilers split vectors before they know the target.
#define GALLEY_WALK(NAME, TARGET, BYTES)                                                         \
  TARGET uint64_t NAME(const float* data, int64_t count, int64_t times) {                        \
    using Words = uint64_t __attribute__((vector_size(BYTES), aligned(4), may_alias));           \
    Words a{}, b{}, c{}, d{};                                                                    \
    const auto* all = reinterpret_cast<const Words*>(data);                                      \
    for (int64_t n = 0; n < times; ++n) {                                                        \
      for (const Words *v = all, *end = all + count * 4 / (4 * (BYTES)) * 4; v != end; v += 4) { \
        a |= v[0];                                                                               \
        b |= v[1];                                                                               \
        c |= v[2];                                                                               \
        d |= v[3];                                                                               \
      }                                                                                          \
      asm volatile("" : : : "memory"); /* forces a new read each time */                         \
    }                                                                                            \
    const Words bits = (a | b) | (c | d);                                                        \
    return bits[0] | bits[1];                                                                    \
  }
GALLEY_WALK(walk_avx512, __attribute__((target("avx512f"))), 64)
GALLEY_WALK(walk_avx2, __attribute__((target("avx2"))), 32)
GALLEY_WALK(walk_sse2, , 16)
#undef GALLEY_WALK

uint64_t walk(const float* data, int64_t count, int64_t times) {
  static const auto widest = __builtin_cpu_supports("avx512f") ? walk_avx512 : __builtin_cpu_supports("avx2") ? walk_avx2 : walk_sse2;
  return widest(data, count, times);
}

double read_bandwidth(int64_t bytes, double seconds) {
  const int threads = compute_threads();
  const int64_t count = bytes / 4, times = std::max<int64_t>(1, (int64_t{8} << 20) / bytes);
  std::vector<std::unique_ptr<float[]>> arrays(static_cast<size_t>(threads));
  parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      arrays[static_cast<size_t>(t)].reset(new float[static_cast<size_t>(count)]);
      std::fill_n(arrays[static_cast<size_t>(t)].get(), count, 1.0f);
    }
  });
  return reached_rate(seconds, [&] {
    std::vector<uint64_t> bits(static_cast<size_t>(threads));
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) bits[static_cast<size_t>(t)] = walk(arrays[static_cast<size_t>(t)].get(), count, times);
    });
    volatile uint64_t keep = bits[0];
    (void)keep;
    return static_cast<double>(bytes) * static_cast<double>(times) * threads;
  });
}

double page_touch_seconds() {
  constexpr int64_t kBytes = int64_t{64} << 20, kPage = 4096;
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    auto* memory = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED) fail(ErrorCode::kResource, "not enough memory to measure page faults");
    madvise(memory, kBytes, MADV_NOHUGEPAGE);
    const auto began = std::chrono::steady_clock::now();
    for (int64_t at = 0; at < kBytes; at += kPage) memory[at] = std::byte{1};
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / (kBytes / kPage));
    munmap(memory, kBytes);
  }
  return summarize(seconds).median;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

/// Size of a data cache as shared by this processor's cores. sysconf may report the whole machine's last-level cache, of which a virtual
/// machine has only a part.
int64_t cache_bytes(int level, int name, int64_t fallback) {
  const auto read = [](const std::string& file, auto& value) { return static_cast<bool>(std::ifstream(file) >> value); };
  for (int index = 0; index < 8; ++index) {
    const std::string folder = cat("/sys/devices/system/cpu/cpu0/cache/index", index, "/");
    int found = 0;
    int64_t kib = 0;  // "32768K"
    std::string type;
    if (read(folder + "level", found) && found == level && read(folder + "type", type) && type != "Instruction" &&
        read(folder + "size", kib) && kib > 0)
      return kib << 10;
  }
  const long bytes = sysconf(name);
  return bytes > 0 ? bytes : fallback;
}

}  // namespace

double MachineReport::f32_per_s() const {
  double best = 0;
  for (const PeakRate& peak : peaks) best = peak.dtype == "f32" ? std::max(best, peak.per_s) : best;
  return best;
}

MachineReport measure_machine_report(double seconds) {
  MachineReport report;
  report.threads = compute_threads();
  report.cpu = cpu_name();
  const auto count = static_cast<double>(bursts().size());
  for (const Burst& burst : bursts()) {
    const std::string dtype = burst.dtype == DType::kI8 ? "int8" : std::string(dtype_name(burst.dtype));
    report.peaks.push_back({dtype, burst.instruction_set, measure_burst(burst, seconds / 2 / count)});
  }
  // Half of a cache level fits comfortably; for memory, use eight times the last level.
  const int64_t l1 = cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE, 32 << 10), l2 = cache_bytes(2, _SC_LEVEL2_CACHE_SIZE, 512 << 10),
                l3 = cache_bytes(3, _SC_LEVEL3_CACHE_SIZE, 16 << 20);
  const std::array<std::pair<const char*, int64_t>, 4> levels{
      {{"L1", l1 / 2},
       {"L2", l2 / 2},
       {"L3", std::max(l2 * 2, l3 / 4 / report.threads)},
       {"memory", std::clamp<int64_t>(8 * l3 / report.threads, int64_t{32} << 20, int64_t{256} << 20)}}};
  for (const auto& [name, bytes] : levels) report.levels.push_back({name, bytes, read_bandwidth(bytes, seconds / 10)});
  report.triad_per_s = measure_machine(seconds / 10).bytes_per_s;
  report.page_touch_s = page_touch_seconds();
  report.barrier_s = 1 / reached_rate(seconds / 20, [] {
                       constexpr int kTimes = 1000;
                       for (int i = 0; i < kTimes; ++i) parallel_for(compute_threads(), 1, [](int64_t, int64_t) {});
                       return static_cast<double>(kTimes);
                     });

  for (size_t i = 1; i < report.levels.size(); ++i) {
    if (report.levels[i].read_per_s > 1.1 * report.levels[i - 1].read_per_s) {
      report.doubts.push_back(cat(report.levels[i].level, " reads faster than ", report.levels[i - 1].level,
                                  ": other programs are running, or the reported cache sizes are wrong"));
    }
  }
  for (const PeakRate& wide : report.peaks) {
    for (const PeakRate& narrow : report.peaks) {
      if (wide.dtype != "f32" || narrow.dtype != "f64" || wide.instruction_set != narrow.instruction_set) continue;
      const double ratio = wide.per_s / narrow.per_s;
      if (!(ratio > 1.6 && ratio < 2.5))
        report.doubts.push_back(cat("f32 is ", static_cast<int64_t>(ratio * 100) / 100.0, " times f64 on ", wide.instruction_set,
                                    ", not 2: the clock frequency changed during the measurement"));
    }
  }
  if (report.triad_per_s > 1.3 * report.levels.back().read_per_s)
    report.doubts.push_back("reading and writing is faster than reading only: other programs were running");
  return report;
}

nlohmann::ordered_json machine_json(const MachineReport& machine) {
  using Json = nlohmann::ordered_json;
  Json json{{"threads", machine.threads}, {"cpu", machine.cpu}, {"peaks", Json::array()}, {"levels", Json::array()}};
  for (const PeakRate& peak : machine.peaks)
    json["peaks"].push_back({{"dtype", peak.dtype}, {"isa", peak.instruction_set}, {"per_s", peak.per_s}});
  for (const LevelBandwidth& level : machine.levels)
    json["levels"].push_back({{"level", level.level}, {"bytes", level.bytes}, {"read_per_s", level.read_per_s}});
  json["f32_per_s"] = machine.f32_per_s();
  json["triad_per_s"] = machine.triad_per_s;
  json["page_touch_ns"] = machine.page_touch_s * 1e9;
  json["barrier_us"] = machine.barrier_s * 1e6;
  json["doubts"] = machine.doubts;
  return json;
}

Table machine_table(const MachineReport& machine) {
  Table table{{"what", "of", "value", "unit"}, {}};
  for (const PeakRate& peak : machine.peaks) {
    table.rows.push_back(
        {"peak " + peak.dtype, peak.instruction_set, human_number(peak.per_s / 1e9), peak.dtype == "int8" ? "GOP/s" : "GFLOP/s"});
  }
  for (const LevelBandwidth& level : machine.levels) {
    table.rows.push_back({"read " + level.level, human_bytes(static_cast<double>(level.bytes)) + " per thread",
                          human_number(level.read_per_s / 1e9), "GB/s"});
  }
  table.rows.push_back({"read and write memory", "a = b + s c", human_number(machine.triad_per_s / 1e9), "GB/s"});
  table.rows.push_back({"page touch", "4 KiB", human_number(machine.page_touch_s * 1e9), "ns"});
  table.rows.push_back({"barrier", cat(machine.threads, " threads"), human_number(machine.barrier_s * 1e6), "us"});
  return table;
}

}  // namespace galley
