#pragma once
// The one pool of compute threads: OpenMP's, shared with oneDNN. Data workers are threads of their own (data/).

#include <cstdint>

#include "libcore/base/cores.h"
#include "libcore/base/function_ref.h"

namespace galley {

/// Threads that parallel_for and the vendor library use. Set once at start by the tool; at least 1.
int compute_threads();
void set_compute_threads(int threads);
/// Gives the calling thread a count of its own while it lives: replicas that run side by side, each on its share of the cores.
class ThreadShare {
 public:
  explicit ThreadShare(int threads);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int saved_, saved_pool_;
};
/// Cuts [0, count) into at most compute_threads() ranges of equal size (a pure function of count, grain and threads) and
/// calls body(begin, end) for each, one a thread. Ranges hold at least `grain` items. An exception thrown by a body is
/// rethrown here (the first range's, if several throw). Allocates nothing.
void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

/// body(task, slot) once for each task of [0, count), fewer than 2^32, on `threads` slots that run side by side. A slot takes its own
/// stretch of the tasks in order, the same stretch in every call with these numbers: what one operator wrote lies in the cache of the core
/// that reads it in the next. Then it helps others from the end of theirs. Exceptions as parallel_for.
void parallel_tasks(int64_t count, int64_t threads, FunctionRef<void(int64_t task, int64_t slot)> body);

/// body(begin, end) for ranges that together are [0, count), cut at multiples of `grain`, a pure function of these. A thread takes a
/// stretch of them, from its end where `backwards` says so, then helps others: for bodies that do not care how [0, count) is cut, on
/// machines whose cores others use too.
void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body, bool backwards = false);

}  // namespace galley
