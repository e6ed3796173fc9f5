#pragma once
// Timing: warm-up until stable, then rounds in which every candidate runs once, until the intervals are narrow enough or time is up.
// Nothing is printed or allocated inside a timed region.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libcore/profiler/statistics.h"

namespace galley {

struct TimerOptions {
  double relative_error = 0.01;  // of every candidate's median (95 %): stop where reached
  int64_t min_runs = 10;
  double max_time_s = 30;        // of all candidates together, warm-up included
  int64_t warmup = -1;           // rounds that do not count; -1: until two rounds agree within 5 %, at most a quarter of the time
  double least_sample_s = 2e-4;  // shorter work is repeated within one sample, so that the clock's grain does not count
  bool cold = false;             // empty the caches before each sample (one repetition a sample)
  std::function<bool()> stop;    // asked between rounds: true ends the timing, with what there is by then
};

struct Series {
  std::vector<double> seconds;  // of one repetition, a sample each, in order
  int64_t repetitions = 1;      // within a sample
  int64_t warmup_rounds = 0;
  bool converged = false;  // relative_error was reached
};

/// Times the candidates in turns: each round runs every one once, in the same order. Exceptions pass through.
std::vector<Series> time_interleaved(std::span<const std::function<void()>> candidates, const TimerOptions& options = {});

/// Overwrites a buffer larger than the caches.
void empty_caches();

/// What the machine does besides, as the system tells: for the note beside a measurement.
struct MachineState {
  double others = 0;     // cores that other programs used on average since the object was made, of those that this process may use
  double steal = 0;      // share of time that other virtual machines took since then
  std::string governor;  // of core 0; "" where there is none
};

/// Of some processors since the machine started: `busy` for any program, `stolen` by other virtual machines, `all` idle time included.
struct CpuSeconds {
  double busy = 0, stolen = 0, all = 0;
};
/// From the text of /proc/stat (proc(5)); processors that it does not list count nothing.
CpuSeconds cpu_seconds(const std::string& proc_stat, const std::vector<int>& processors, double ticks_per_s);

/// Watches the machine while it lives: make it before a measurement, ask it after.
class MachineWatch {
 public:
  MachineWatch();
  MachineState state() const;
  /// Remarks worth showing: "other programs ran: they used 1.9 of 2 cores meanwhile, ...", ...
  std::vector<std::string> remarks(int threads) const;

 private:
  std::chrono::steady_clock::time_point began_;
  std::vector<int> processors_;
  CpuSeconds begun_;
  double own_begun_;
};

}  // namespace galley
