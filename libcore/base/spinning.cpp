#include "libcore/base/spinning.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr std::chrono::milliseconds kPeriod{20};
/// A woken thread waits for its core also on an idle machine, longest in virtual machines, whose idle cores must be woken too. An estimate.
constexpr double kWakeUp_s = 100e-6;
/// Of the wall time, that threads wait beyond their wake-ups. Chosen, not measured on a quiet machine yet; beside builds at a load of 13 it
/// is passed at once (docs/performance/rules.md#threads).
constexpr double kShare = 0.05;
/// Periods of work without waiting (0.2 s) before spinning is worth its while again. A period in which the threads hardly ran says
/// nothing: at low priority they may wait for longer than that.
constexpr int kCalmPeriods = 10;
constexpr double kWorkOfCalm = 0.5;  // of the wall time
/// After a preemption, so many periods are looked at more closely.
constexpr int kPeriodsOfCare = 10;

int64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// Reads what the kernel counts of the threads of this process. The folder stays open: a step may run meanwhile, in which nothing
/// allocates.
class ThreadCounts {
 public:
  ThreadCounts() : folder_(opendir("/proc/self/task")) {}
  ~ThreadCounts() {
    if (folder_ != nullptr) closedir(folder_);
  }
  ThreadCounts(const ThreadCounts&) = delete;
  ThreadCounts& operator=(const ThreadCounts&) = delete;

  /// Adds up /proc/self/task/*/schedstat ("nanoseconds on a core, nanoseconds of waiting for one, runs"), but for thread `except`; nullopt
  /// where the kernel does not count.
  std::optional<CoreUse> read(pid_t except) {
    if (folder_ == nullptr) return std::nullopt;
    rewinddir(folder_);
    CoreUse use;
    bool any = false;
    while (const dirent* entry = readdir(folder_)) {
      const long thread = std::atol(entry->d_name);
      if (thread > 0 && thread != except) any = add(thread, use) || any;
    }
    return any ? std::optional(use) : std::nullopt;
  }

 private:
  /// False where the thread has ended, or never ran.
  static bool add(long thread, CoreUse& use) {
    char path[64], text[128];
    std::snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", thread);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = ::read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return false;
    text[size] = '\0';
    long long ran = 0, waited = 0, runs = 0;
    if (std::sscanf(text, "%lld %lld %lld", &ran, &waited, &runs) != 3) return false;
    use.ran_s += static_cast<double>(ran) * 1e-9;
    use.waited_s += static_cast<double>(waited) * 1e-9;
    use.runs += runs;
    return ran > 0;
  }

  DIR* folder_;
};

/// Threads made while it lives take no signals: those are for the tool's own threads.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t saved_{};
};

class Watch {
 public:
  Watch() {
    const NoSignals blocked;
    thread_ = std::thread([this] { run(); });
  }
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  bool ended() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPeriod, [this] { return stop_; });
  }

  void run() {
    using Clock = std::chrono::steady_clock;
    const auto self = static_cast<pid_t>(syscall(SYS_gettid));
    ThreadCounts counts;
    SharedCores cores;
    std::optional<ShortSpinning> spinning;
    std::optional<CoreUse> last;  // of the period before, where it was read
    int64_t last_preemptions = preemptions();
    int care = 0;
    Clock::time_point last_time = Clock::now();
    while (!ended()) {
      const int64_t now_preemptions = preemptions();
      const Clock::time_point now_time = Clock::now();
      // One preemption a period is this thread's own. Without more nothing has to be read.
      care = now_preemptions - last_preemptions > 1 ? kPeriodsOfCare : std::max(0, care - 1);
      const std::optional<CoreUse> now = cores.shared() || care > 0 ? counts.read(self) : std::nullopt;
      if (now && last) {
        // Threads that ended take their counts with them.
        const CoreUse period{.wall_s = std::chrono::duration<double>(now_time - last_time).count(),
                             .ran_s = std::max(0.0, now->ran_s - last->ran_s),
                             .waited_s = std::max(0.0, now->waited_s - last->waited_s),
                             .runs = std::max<int64_t>(0, now->runs - last->runs)};
        if (cores.update(period) != spinning.has_value()) {
          if (cores.shared()) {
            spinning.emplace();
          } else {
            spinning.reset();
          }
        }
      }
      last = now;
      last_preemptions = now_preemptions;
      last_time = now_time;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

bool SharedCores::update(const CoreUse& period) {
  const double beyond_wake_ups = period.waited_s - static_cast<double>(period.runs) * kWakeUp_s;
  const bool waiting = beyond_wake_ups > kShare * period.wall_s;
  if (waiting) {
    shared_ = true;
    calm_ = 0;
  } else if (period.ran_s > kWorkOfCalm * period.wall_s && ++calm_ >= kCalmPeriods) {
    shared_ = false;
  }
  return shared_;
}

void* ShortSpinning::hold(void* self) {
  auto& spinning = *static_cast<ShortSpinning*>(self);
  // The compute threads are fewer than the processors where the user said so; then more must be held.
  const int threads = std::max(2, omp_get_num_procs() - compute_threads() + 2);
  // A pool of this thread's own, which ends with it. Its threads sleep.
#pragma omp parallel num_threads(threads)
  {
    asm volatile("" ::: "memory");
  }
  std::unique_lock lock(spinning.mutex_);
  spinning.held_ = true;
  spinning.changed_.notify_all();
  spinning.changed_.wait(lock, [&] { return spinning.released_; });
  return nullptr;
}

ShortSpinning::ShortSpinning() {
  made_ = pthread_create(&thread_, nullptr, hold, this) == 0;  // where the system has no more threads, spinning stays long
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return held_ || !made_; });
}

ShortSpinning::~ShortSpinning() {
  if (!made_) return;
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  changed_.notify_all();
  pthread_join(thread_, nullptr);
}

void watch_cores() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (dlsym(RTLD_DEFAULT, "kmp_set_blocktime") != nullptr) return;  // LLVM's library, which builds with clang use
  static Watch watch;
}

}  // namespace galley
