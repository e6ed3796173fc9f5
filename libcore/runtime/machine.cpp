#include "libcore/runtime/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/runtime/bursts.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

// Uses the fastest tenth instead of the median: other processes must not lower the limit, or runs could exceed it.
double reached_rate(double seconds, const std::function<double()>& work) {
  work();  // warm up clocks and pages
  std::vector<double> rates;
  const auto start = Clock::now();
  do {
    const auto began = Clock::now();
    const double amount = work();
    rates.push_back(amount / seconds_since(began));
  } while (seconds_since(start) < seconds || rates.size() < 5);
  const auto best_tenth = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 10);
  std::nth_element(rates.begin(), best_tenth, rates.end(), std::greater<>());
  return *best_tenth;
}

MachineLimits measure_machine(double seconds) {
  MachineLimits limits;
  std::vector<Burst> best;  // the fastest burst of each dtype in use
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const auto last = std::find_if(bursts().rbegin(), bursts().rend(), [&](const Burst& burst) { return burst.dtype == dtype; });
    if (last != bursts().rend()) best.push_back(*last);
  }
  for (const Burst& burst : best)
    limits.set_peak(burst.dtype, measure_burst(burst, seconds / 2 / static_cast<double>(best.size())), burst.instruction_set);
  constexpr int64_t kElements = 8 << 20;  // 32 MiB per array
  std::unique_ptr<float[]> a(new float[kElements]), b(new float[kElements]), c(new float[kElements]);
  parallel_for(kElements, 4096, [&](int64_t begin, int64_t end) {
    std::fill(a.get() + begin, a.get() + end, 0.0f);
    std::fill(b.get() + begin, b.get() + end, 1.0f);
    std::fill(c.get() + begin, c.get() + end, 2.0f);
  });
  limits.bytes_per_s = reached_rate(seconds / 2, [&] {
    parallel_for(kElements, 4096, [&](int64_t begin, int64_t end) {
      float* out = a.get();
      const float* in1 = b.get();
      const float* in2 = c.get();
      for (int64_t i = begin; i < end; ++i) out[i] = in1[i] + 3.0f * in2[i];
    });
    return 12.0 * kElements;
  });
  return limits;
}

void MachineLimits::set_peak(DType dtype, double per_s, std::string_view set) {
  if (dtype == DType::kF32) {
    flops_per_s = per_s;
    instruction_set = set;
  } else if (dtype == DType::kBF16) {
    bf16_per_s = per_s;
  } else if (dtype == DType::kI8) {
    int8_per_s = per_s;
  }
}

void Arithmetic::add(const Cost& cost, double times) {
  (cost.dtype == DType::kBF16 ? bf16 : cost.dtype == DType::kI8 ? int8 : f32) += times * cost.executed_flops();
}

double Arithmetic::seconds_at(const MachineLimits& limits) const {
  const auto peak = [&](double of_type) { return of_type > 0 ? of_type : limits.flops_per_s; };
  return limits.flops_per_s > 0 ? f32 / limits.flops_per_s + bf16 / peak(limits.bf16_per_s) + int8 / peak(limits.int8_per_s) : 0;
}

Arithmetic Arithmetic::operator*(double times) const { return {times * f32, times * bf16, times * int8}; }
Arithmetic& Arithmetic::operator+=(const Arithmetic& other) {
  f32 += other.f32;
  bf16 += other.bf16;
  int8 += other.int8;
  return *this;
}

}  // namespace galley
