#pragma once
// Measured limits of this machine, with which other measurements are compared.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/base/table.h"

namespace galley {

struct PeakRate {
  std::string dtype;            // f32, f64, bf16, int8
  std::string instruction_set;  // sse2, avx2, avx512f, avx512_bf16, avx512_vnni
  double per_s = 0;             // operations per second (two per multiply-add) on all threads, from registers
};

struct LevelBandwidth {
  std::string level;      // "L1", "L2", "L3" or "memory"
  int64_t bytes = 0;      // read by each thread
  double read_per_s = 0;  // bytes per second on all threads
};

struct MachineReport {
  int threads = 1;
  std::string cpu;  // processor name from the system
  std::vector<PeakRate> peaks;
  std::vector<LevelBandwidth> levels;  // nearest first; the last is memory
  double triad_per_s = 0;              // bytes per second read and written by a[i] = b[i] + s c[i] beyond the caches
  double page_touch_s = 0;             // time of the first touch of a 4 KiB page
  double barrier_s = 0;                // time to enter and leave a parallel region
  /// Implausible results, e.g. a farther cache level that is faster than a nearer one, or f64 not near half of f32. Empty: plausible.
  std::vector<std::string> doubts;

  /// The highest f32 rate.
  double f32_per_s() const;
};

/// Measures on compute_threads() threads; takes about `seconds`.
MachineReport measure_machine_report(double seconds = 6);

/// {"threads","cpu","peaks","levels","f32_per_s","triad_per_s","page_touch_ns","barrier_us","doubts"}: the format of the store
/// that machine_limits reads.
nlohmann::ordered_json machine_json(const MachineReport& machine);
Table machine_table(const MachineReport& machine);

}  // namespace galley
