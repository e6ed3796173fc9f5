#include "libcore/runtime/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Ten independent chains hide the latency of two FMA units (4..5 cycles). Named accumulators: an array would be spilled and
// report a fraction of the peak.
#define GALLEY_FMA_BURST(Vector)                                                                          \
  Vector a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {}, i = {}, j = {};                  \
  Vector x = a + seed, y = a + 0.5f;                                                                      \
  for (int64_t n = 0; n < rounds; ++n) {                                                                  \
    a = a * y + x; b = b * y + x; c = c * y + x; d = d * y + x; e = e * y + x;                            \
    f = f * y + x; g = g * y + x; h = h * y + x; i = i * y + x; j = j * y + x;                            \
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j)); \
  }                                                                                                       \
  const Vector sum = a + b + c + d + e + f + g + h + i + j;                                               \
  return sum[0];

typedef float Vector4 __attribute__((vector_size(16)));
[[maybe_unused]] float burst_generic(int64_t rounds, float seed) {
  Vector4 a = {}, b = {}, c = {}, d = {}, x = a + seed, y = a + 0.5f;
  for (int64_t n = 0; n < rounds; ++n) {
    a = a * y + x;
    b = b * y + x;
    c = c * y + x;
    d = d * y + x;
  }
  return (a + b + c + d)[0];
}

#if defined(__x86_64__)
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));
__attribute__((target("avx2,fma"), optimize("fp-contract=fast"))) float burst_avx2(int64_t rounds, float seed) { GALLEY_FMA_BURST(Vector8) }
__attribute__((target("avx512f"), optimize("fp-contract=fast"))) float burst_avx512(int64_t rounds, float seed) { GALLEY_FMA_BURST(Vector16) }
#endif

struct Burst {
  float (*run)(int64_t, float);
  double flops_per_round;
  const char* name;
};

Burst widest_burst() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return {burst_avx512, 2.0 * 16 * 10, "avx512"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {burst_avx2, 2.0 * 8 * 10, "avx2"};
#endif
  return {burst_generic, 2.0 * 4 * 4, "generic"};
}

}  // namespace

// Not the median: a limit must not sink because something else ran at the time, or shares of it come out above 1.
double reached_rate(double seconds, const std::function<double()>& work) {
  work();  // warm: clocks, pages
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
  const Burst burst = widest_burst();
  limits.instruction_set = burst.name;
  constexpr int64_t kRounds = 400000;
  const int threads = compute_threads();
  limits.flops_per_s = reached_rate(seconds / 2, [&] {
    std::vector<float> results(static_cast<size_t>(threads));
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) results[static_cast<size_t>(t)] = burst.run(kRounds, static_cast<float>(t));
    });
    volatile float keep = results[0];  // the result must be used, or the loop is removed
    (void)keep;
    return burst.flops_per_round * kRounds * threads;
  });
  constexpr int64_t kElements = 8 << 20;  // 32 MiB an array
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

}  // namespace galley
