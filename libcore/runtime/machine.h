#pragma once
// Measured limits of this machine. Reports relate the rate of a run to them.

#include <functional>
#include <string>
#include <string_view>

#include "libcore/graph/op_def.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// Peak rates of the machine, per second.
struct MachineLimits {
  double flops_per_s = 0;  // f32 multiply-adds from registers (two flops each) on all compute threads
  double bf16_per_s = 0;   // the same for bf16, summed in f32; 0 without such an instruction
  double int8_per_s = 0;   // products of bytes, summed in 32 bits; two operations each
  double bytes_per_s = 0;  // a[i] = b[i] + s*c[i] over arrays larger than the caches; counts bytes read and written, without write-allocate
  std::string instruction_set;  // that gave flops_per_s

  /// Sets the peak rate of f32, bf16 or i8; ignores other dtypes.
  void set_peak(DType dtype, double per_s, std::string_view instruction_set);
};

/// Number of operations by dtype of the operands. Each dtype has its own limit.
struct Arithmetic {
  double f32 = 0, bf16 = 0, int8 = 0;

  void add(const Cost& cost, double times = 1);
  double total() const { return f32 + bf16 + int8; }
  /// The minimum time on this machine. A dtype without a rate counts as f32. 0 without limits.
  double seconds_at(const MachineLimits& limits) const;
  Arithmetic operator*(double times) const;
  Arithmetic& operator+=(const Arithmetic& other);
};

/// Calls `work`, which returns the amount of work done, for about `seconds`. Returns the rate that the fastest tenth of the calls reaches.
double reached_rate(double seconds, const std::function<double()>& work);

/// Measures all limits in about `seconds`, with reached_rate of bursts on compute_threads() threads. Allocates 96 MiB temporarily.
MachineLimits measure_machine(double seconds = 0.5);

}  // namespace galley
