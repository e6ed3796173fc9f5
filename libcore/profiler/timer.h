#pragma once
// Timing: warm-up until times are stable, then rounds in which every candidate runs once, until the confidence intervals are narrow enough
// or time is up. Nothing is printed or allocated inside a timed region.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libcore/profiler/statistics.h"

namespace galley {

struct TimerOptions {
  double relative_error = 0.01;  // stop when the 95 % interval of every candidate's median is within this fraction
  int64_t min_runs = 10;
  double max_time_s = 30;      // for all candidates together, warm-up included
  int64_t warmup = -1;         // warm-up rounds; -1: until two rounds agree within 5 %, at most a quarter of the time
  double min_sample_s = 2e-4;  // shorter work is repeated within one sample, so that the clock's resolution does not matter
  bool cold = false;           // empty the caches before each sample (one repetition per sample)
  std::function<bool()> stop;  // called between rounds; true ends the timing and keeps the samples so far
};

struct Series {
  std::vector<double> seconds;  // time of one repetition for each sample, in order
  int64_t repetitions = 1;      // repetitions per sample
  int64_t warmup_rounds = 0;
  bool converged = false;  // whether relative_error was reached
};

/// Times the candidates in turns: each round runs every candidate once, in the same order. Exceptions propagate.
std::vector<Series> time_interleaved(std::span<const std::function<void()>> candidates, const TimerOptions& options = {});

/// Overwrites a buffer larger than the caches.
void empty_caches();

/// Other load on the machine during a measurement, as reported by the system.
struct MachineState {
  double others = 0;     // average number of cores used by other programs, of those that this process may use
  double steal = 0;      // fraction of time taken by other virtual machines
  std::string governor;  // frequency governor of core 0; "" if there is none
};

/// CPU time of some processors since boot: `busy` for any program, `stolen` by other virtual machines, `all` including idle time.
struct CpuSeconds {
  double busy = 0, stolen = 0, all = 0;
};
/// Parses the text of /proc/stat (proc(5)); processors not listed there count as 0.
CpuSeconds cpu_seconds(const std::string& proc_stat, const std::vector<int>& processors, double ticks_per_s);

/// Observes the machine's load: construct it before a measurement and query it afterwards.
class MachineWatch {
 public:
  MachineWatch();
  MachineState state() const;
  /// Remarks for the user: "other programs used 1.9 of 2 cores during the measurement, ...", ...
  std::vector<std::string> remarks(int threads) const;

 private:
  std::chrono::steady_clock::time_point began_;
  std::vector<int> processors_;
  CpuSeconds begun_;
  double own_begun_;
};

}  // namespace galley
