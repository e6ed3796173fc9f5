#pragma once
// The shared pool of compute threads: OpenMP's, also used by oneDNN. Data workers are separate threads (data/).

#include <cstdint>

#include "libcore/base/cores.h"
#include "libcore/base/function_ref.h"

namespace galley {

/// Number of threads that parallel_for and oneDNN use; at least 1. A tool sets it once at start.
int compute_threads();
void set_compute_threads(int threads);
/// Sets the number of compute threads of the calling thread for its lifetime: for replicas that run concurrently, each on its share of the
/// cores.
class ThreadShare {
 public:
  explicit ThreadShare(int threads);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int saved_, saved_pool_;
};
/// Splits [0, count) into at most compute_threads() ranges of equal size (a pure function of count, grain and threads) and calls
/// body(begin, end) for each range on its own thread. Ranges have at least `grain` items. If bodies throw, the exception of the first range
/// is rethrown here. Allocates nothing.
void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

/// Calls body(task, slot) once for each task in [0, count), count < 2^32, on `threads` concurrent slots. A slot first takes its own
/// contiguous tasks in order; these are the same in every call with equal count and threads, so the next operator finds data of the
/// previous one in its core's cache. Then it takes tasks from the end of other slots. Exceptions as in parallel_for.
void parallel_tasks(int64_t count, int64_t threads, FunctionRef<void(int64_t task, int64_t slot)> body);

/// Calls body(begin, end) for ranges that cover [0, count), split at multiples of `grain` (a pure function of count and grain). Each thread
/// takes its own contiguous ranges in order (in reverse order if `backwards`), then ranges of other threads. For bodies whose result does
/// not depend on the split, on machines where other processes use the cores too.
void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body, bool backwards = false);

}  // namespace galley
