#include "libcore/base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>

#include "libcore/base/cores.h"
#include "libcore/base/denormals.h"
#include "libcore/base/spinning.h"

namespace galley {
namespace {
std::atomic<int> threads_in_use = 0;  // also read by the thread of base/spinning.h
thread_local int thread_share = 0;
}  // namespace

ThreadShare::ThreadShare(int threads) : saved_(thread_share), saved_pool_(omp_get_max_threads()) {
  thread_share = std::max(1, threads);
  omp_set_num_threads(thread_share);  // only for this thread; oneDNN reads it
}

ThreadShare::~ThreadShare() {
  thread_share = saved_;
  omp_set_num_threads(saved_pool_);
}

int compute_threads() {
  if (thread_share > 0) return thread_share;
  if (const int threads = threads_in_use.load(std::memory_order_relaxed); threads > 0) return threads;
  static const int cores = available_cores();  // cached: called for every loop, and reads files
  return cores;
}

void set_compute_threads(int threads) {
  threads = std::max(1, threads);
  threads_in_use = threads;
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
  if (threads > 1) watch_cores();
}

void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int threads = compute_threads();
  const int64_t parts = std::min<int64_t>(threads, (count + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1));
  if (parts <= 1) {
    body(0, count);
    return;
  }
  const bool flush = flushes_denormals();  // of each thread, as of the calling one
  std::mutex mutex;
  std::exception_ptr error;
  int64_t failed = parts;  // index of the first part that threw
  // Always use the whole team, although some threads may have no part: libgomp ends the threads that a smaller team leaves out and creates
  // them again for the next loop.
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    try {
      if (flush) start_flushing_denormals();
      body(count * part / parts, count * (part + 1) / parts);
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      if (part < failed) error = std::current_exception();
      failed = std::min(failed, part);
    }
  }
  if (error) std::rethrow_exception(error);
}

namespace {

/// Upper limit of slots in parallel_tasks; no current machine has more compute threads.
constexpr int64_t kMaxSlots = 512;

/// The remaining tasks of one slot: begin in the upper half, end in the lower half. Each has its own cache line.
struct alignas(64) TaskRange {
  std::atomic<uint64_t> remaining{0};

  /// Takes the first (or the last) remaining task; -1 if none remains.
  int64_t take(bool last) {
    for (uint64_t now = remaining.load(std::memory_order_relaxed);;) {
      const uint64_t begin = now >> 32, end = now & 0xFFFFFFFF;
      if (begin >= end) return -1;
      const uint64_t rest = last ? begin << 32 | (end - 1) : (begin + 1) << 32 | end;
      if (remaining.compare_exchange_weak(now, rest, std::memory_order_relaxed)) return static_cast<int64_t>(last ? end - 1 : begin);
    }
  }
};

}  // namespace

void parallel_tasks(int64_t count, int64_t threads, FunctionRef<void(int64_t, int64_t)> body) {
  threads = std::min({threads, count, kMaxSlots});
  if (threads <= 1) {
    for (int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  alignas(TaskRange) std::byte memory[kMaxSlots * sizeof(TaskRange)];  // on the stack, because a step allocates nothing
  const std::span ranges(reinterpret_cast<TaskRange*>(memory), static_cast<size_t>(threads));
  std::uninitialized_default_construct(ranges.begin(), ranges.end());
  for (int64_t slot = 0; slot < threads; ++slot) {
    ranges[static_cast<size_t>(slot)].remaining =
        static_cast<uint64_t>(count * slot / threads) << 32 | static_cast<uint64_t>(count * (slot + 1) / threads);
  }
  parallel_for(threads, 1, [&](int64_t first, int64_t end) {
    for (int64_t slot = first; slot < end; ++slot) {
      for (int64_t other = 0; other < threads; ++other) {
        TaskRange& range = ranges[static_cast<size_t>((slot + other) % threads)];
        for (int64_t task = range.take(other > 0); task >= 0; task = range.take(other > 0)) body(task, slot);
      }
    }
  });
}

void parallel_ranges(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body, bool backwards) {
  const int64_t ranges = (count + grain - 1) / grain, threads = std::min<int64_t>(compute_threads(), ranges);
  parallel_tasks(ranges, threads, [&](int64_t task, int64_t) {
    // Reverse the order of tasks within each slot.
    if (backwards) {
      const int64_t slot = ((task + 1) * threads - 1) / ranges;
      task = ranges * slot / threads + ranges * (slot + 1) / threads - 1 - task;
    }
    body(task * grain, std::min(count, (task + 1) * grain));
  });
}

}  // namespace galley
