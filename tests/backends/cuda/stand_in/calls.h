#pragma once
// Calls of the stand-in libraries: counted, logged, and made to fail.

#include <functional>

#include "libcore/vendor/cuda/driver.h"

namespace galley::stand_in {

/// Counts a call. Returns the error with which it must fail, or 0.
cuda::Result count_call(const char* function);
/// Enqueues host code that stands in for a kernel, or records it.
cuda::Result enqueue(cuda::StreamHandle stream, const char* kernel, unsigned blocks, std::function<void()> work);

/// The relative error of sums in any order: another one in each run.
double error_of_order();

}  // namespace galley::stand_in

#define GALLEY_CALL(name) \
  if (const galley::cuda::Result injected = galley::stand_in::count_call(name); injected != 0) return injected
