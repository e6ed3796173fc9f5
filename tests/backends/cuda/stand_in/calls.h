#pragma once
// Calls of the stand-in libraries: counted, logged, and made to fail.

#include <functional>
#include <string>

#include "libcore/vendor/cuda/driver.h"

namespace galley::stand_in {

/// Counts a call. Returns the error with which it must fail, or 0.
cuda::Result count_call(const char* function);
/// Enqueues host code that stands in for a kernel, or records it.
cuda::Result enqueue(cuda::StreamHandle stream, const char* kernel, unsigned blocks, std::function<void()> work);

/// Learns of the work of streams, as CUPTI does.
struct WorkObserver {
  /// Called by the thread that enqueues work. Returns its number.
  uint32_t (*enqueued)();
  /// Called when it has run; `bytes`: of a copy, -1: a kernel.
  void (*ran)(uint32_t number, const std::string& kernel, int64_t bytes, uint64_t begin_ns, uint64_t end_ns);
  uint64_t (*now_ns)();
};
/// From now on, or nullptr: none.
void observe_work(const WorkObserver* observer);

/// The relative error of sums in any order: another one in each run.
double error_of_order();

}  // namespace galley::stand_in

#define GALLEY_CALL(name) \
  if (const galley::cuda::Result injected = galley::stand_in::count_call(name); injected != 0) return injected
