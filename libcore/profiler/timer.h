#pragma once
// Timing: warm-up until stable, then rounds in which every candidate runs once, until the intervals are narrow enough or time is up.
// Nothing is printed or allocated inside a timed region.

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
  bool converged = false;       // relative_error was reached
};

/// Times the candidates in turns: each round runs every one once, in the same order. Exceptions pass through.
std::vector<Series> time_interleaved(std::span<const std::function<void()>> candidates, const TimerOptions& options = {});

/// Overwrites a buffer larger than the caches.
void empty_caches();

/// What the machine does besides, as the system tells: for the note beside a measurement.
struct MachineState {
  double load = 0;            // running processes, one-minute mean
  double steal = 0;           // share of time that other virtual machines took since the object was made
  std::string governor;       // of core 0; "" where there is none
};
class MachineWatch {
 public:
  MachineWatch();
  MachineState state() const;
  /// Remarks worth showing: "load 3.1 on 2 cores: other programs run", ...
  std::vector<std::string> remarks(int threads) const;

 private:
  std::vector<int64_t> begun_;
};

}  // namespace galley
