#pragma once
// What this machine can do, measured part by part: the yardstick beside every later number.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/base/table.h"

namespace galley {

struct PeakRate {
  std::string dtype;            // f32, f64, bf16, int8
  std::string instruction_set;  // sse2, avx2, avx512f, avx512_bf16, avx512_vnni
  double per_s = 0;             // operations (two a multiply-add), all threads, from registers
};

struct LevelBandwidth {
  std::string level;      // "L1 (32 KiB a thread)"
  int64_t bytes = 0;      // walked by each thread
  double read_per_s = 0;  // bytes, all threads
};

struct MachineReport {
  int threads = 1;
  std::string cpu;  // as the system names it
  std::vector<PeakRate> peaks;
  std::vector<LevelBandwidth> levels;  // nearest first; the last is memory
  double triad_per_s = 0;              // bytes read and written by a[i] = b[i] + s c[i] beyond the caches
  double page_touch_s = 0;             // first touch of a 4 KiB page
  double barrier_s = 0;                // entering and leaving a parallel region
  /// What is not as it should be: a farther level faster than a nearer one, f64 not near half of f32, ... Empty: plausible.
  std::vector<std::string> doubts;

  /// The widest f32 rate.
  double f32_per_s() const;
};

/// Measures on compute_threads() threads, in about `seconds`.
MachineReport measure_machine_report(double seconds = 6);

/// {"threads","cpu","peaks","levels","f32_per_s","triad_per_s","page_touch_ns","barrier_us","doubts"}: what machine_limits reads from its
/// store.
nlohmann::ordered_json machine_json(const MachineReport& machine);
Table machine_table(const MachineReport& machine);

}  // namespace galley
