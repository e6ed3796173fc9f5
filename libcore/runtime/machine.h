#pragma once
// What this machine can do at most: measured, so that a run can state its share of the limit.

#include <functional>
#include <string>

namespace galley {

struct MachineLimits {
  double flops_per_s = 0;   // f32 multiply-adds from registers, two flops each, all compute threads
  double bytes_per_s = 0;   // a[i] = b[i] + s*c[i] over arrays larger than the caches; bytes read and written, write-allocate not counted
  std::string instruction_set;  // that the flops were measured with
};

/// Runs `work`, which returns the amount done, for about `seconds`: the rate that the best tenth of the calls reach.
double reached_rate(double seconds, const std::function<double()>& work);

/// Measures both in about `seconds` (reached_rate of short bursts on compute_threads() threads). Allocates 96 MiB for the time.
MachineLimits measure_machine(double seconds = 0.5);

}  // namespace galley
