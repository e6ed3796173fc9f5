#pragma once
// How long compute threads spin at a barrier before they sleep. With cores of its own, a process gains by spinning: the next loop begins
// microseconds later. When other programs use the same cores, it loses: a thread that spins through its time slice keeps the thread that
// it waits for from running. Measurements: docs/performance/notes.md, "A shared machine".

#include <pthread.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace galley {

/// The kernel's counts of this process's threads over an interval.
struct CoreUse {
  double wall_s = 0;
  double ran_s = 0;     ///< Time on a core, summed over the threads.
  double waited_s = 0;  ///< Time ready to run but without a core, summed over the threads; counted when the thread gets a core.
  int64_t runs = 0;     ///< How often a thread got a core.
};

/// Decides from the counts of consecutive periods whether other programs use the cores. A single period says little: the system's own
/// services hold up a thread for most of one. So the last four together decide that the cores are shared, and ten calm ones in a row that
/// they no longer are.
class SharedCores {
 public:
  /// Takes one period into account and returns the decision.
  bool update(const CoreUse& period);
  bool shared() const { return shared_; }

 private:
  struct Wait {
    double wall_s = 0, waited_s = 0;
  };
  std::array<Wait, 4> recent_{};
  size_t next_ = 0;
  bool shared_ = false;
  int calm_ = 0;  // periods in a row
};

/// While an object lives, the threads of libgomp spin for a few microseconds instead of milliseconds before they sleep. libgomp has no
/// call for that, but spins shorter when it manages more threads than there are processors (do_spin in its config/linux/wait.h), so the
/// object keeps idle threads alive. It has no effect on other OpenMP libraries.
class ShortSpinning {
 public:
  ShortSpinning();
  ~ShortSpinning();
  ShortSpinning(const ShortSpinning&) = delete;
  ShortSpinning& operator=(const ShortSpinning&) = delete;

 private:
  static void* hold(void* self);

  // No operator new: the object may be created while a step runs, and nothing may allocate then.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool made_ = false, held_ = false, released_ = false;
  pthread_t thread_{};
};

/// Starts a thread, once per process, that checks whether the cores are shared and keeps spinning short while they are. Does nothing if
/// the user has chosen how threads wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT) or if the kernel does not count.
void watch_cores();

}  // namespace galley
