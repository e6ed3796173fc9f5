#pragma once
// How long compute threads spin at a barrier before they sleep. On cores of its own a process gains by spinning: the next loop begins
// microseconds later. Where other programs use the same cores it loses: a thread that spins through its time slice keeps the thread that
// it waits for from running (measured: docs/performance/notes.md#a-shared-machine).

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace galley {

/// What the kernel counted of this process's threads since some moment.
struct CoreUse {
  double wall_s = 0;
  double ran_s = 0;     ///< On a core; all threads together.
  double waited_s = 0;  ///< Ready to run, but without a core; counted when the thread is given one.
  int64_t runs = 0;     ///< Times that a thread was given a core.
};

/// Decides from the counts of consecutive periods whether other programs use the cores.
class SharedCores {
 public:
  /// Takes one period into account and returns the decision.
  bool update(const CoreUse& period);
  bool shared() const { return shared_; }

 private:
  bool shared_ = false;
  int calm_ = 0;  // periods in a row
};

/// While it lives, threads that libgomp manages spin for a few microseconds instead of milliseconds before they sleep. libgomp has no call
/// for that, but spins shorter where it manages more threads than there are processors (do_spin in its config/linux/wait.h): this holds
/// idle ones. Another OpenMP library keeps its own ways.
class ShortSpinning {
 public:
  ShortSpinning();
  ~ShortSpinning();
  ShortSpinning(const ShortSpinning&) = delete;
  ShortSpinning& operator=(const ShortSpinning&) = delete;

 private:
  static void* hold(void* self);

  // Without operator new: it may be made while a step runs, in which nothing allocates.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool made_ = false, held_ = false, released_ = false;
  pthread_t thread_{};
};

/// Starts, once a process, a thread that watches whether the cores are shared, and keeps spinning short for so long. Does nothing where the
/// user has chosen how threads wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT) or the kernel does not count.
void watch_cores();

}  // namespace galley
