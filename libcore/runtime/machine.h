#pragma once
// What this machine can do at most: measured, so that a run can state its share of the limit.

#include <functional>
#include <string>
#include <string_view>

#include "libcore/graph/op_def.h"
#include "libcore/tensor/dtype.h"

namespace galley {

struct MachineLimits {
  double flops_per_s = 0;  // f32 multiply-adds from registers, two flops each, all compute threads
  double bf16_per_s = 0;   // the same of bf16, summed in f32; 0 where the processor has no instruction for them
  double int8_per_s = 0;   // products of bytes, summed in 32 bits, two operations each
  double bytes_per_s = 0;  // a[i] = b[i] + s*c[i] over arrays larger than the caches; bytes read and written, write-allocate not counted
  std::string instruction_set;  // that the flops were measured with

  /// Of f32, bf16 or i8; others are ignored.
  void set_peak(DType dtype, double per_s, std::string_view instruction_set);
};

/// Executed operations by the type of their operands: each type has a limit of its own.
struct Arithmetic {
  double f32 = 0, bf16 = 0, int8 = 0;

  void add(const Cost& cost, double times = 1);
  double total() const { return f32 + bf16 + int8; }
  /// What the machine needs for them at least; a type without a rate counts as f32. 0 without limits.
  double seconds_at(const MachineLimits& limits) const;
  Arithmetic operator*(double times) const;
  Arithmetic& operator+=(const Arithmetic& other);
};

/// Runs `work`, which returns the amount done, for about `seconds`: the rate that the best tenth of the calls reach.
double reached_rate(double seconds, const std::function<double()>& work);

/// Measures all in about `seconds` (reached_rate of short bursts on compute_threads() threads). Allocates 96 MiB for the time.
MachineLimits measure_machine(double seconds = 0.5);

}  // namespace galley
