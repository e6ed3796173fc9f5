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
/// Share of the wall time that the threads of a process together wait for a core, above which the cores are shared. Per period of 20 ms, on
/// two cores with two threads, the share was at most 0.19 in nine of ten periods on a quiet machine, also where threads sleep at every
/// barrier, and at least 0.40 in nine of ten with one or two busy processes (docs/performance/notes.md#a-shared-machine).
constexpr double kShare = 0.3;
/// Consecutive periods of work without waiting (0.2 s) after which threads spin for long again. A period in which the threads hardly ran
/// does not count: at low priority they may wait for longer than that.
constexpr int kCalmPeriods = 10;
constexpr double kWorkOfCalm = 0.5;  // of the wall time
/// Number of periods after a preemption in which the counts of all threads are read.
constexpr int kPeriodsOfCare = 10;

int64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// Reads the kernel's counts of this process's threads. The folder stays open, since nothing may allocate while a step runs.
class ThreadCounts {
 public:
  ThreadCounts() : folder_(opendir("/proc/self/task")) {}
  ~ThreadCounts() {
    if (folder_ != nullptr) closedir(folder_);
  }
  ThreadCounts(const ThreadCounts&) = delete;
  ThreadCounts& operator=(const ThreadCounts&) = delete;

  /// Sums /proc/self/task/*/schedstat ("nanoseconds on a core, nanoseconds of waiting for one, runs") over all threads except `except`.
  /// Returns nullopt where the kernel does not count.
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
  /// Returns false if the thread has ended or never ran.
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

/// While it lives, new threads start with all signals blocked: the tools handle signals in their own threads.
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
    std::optional<CoreUse> last;  // of the previous period, if it was read
    int64_t last_preemptions = preemptions();
    int care = 0;
    Clock::time_point last_time = Clock::now();
    while (!ended()) {
      const int64_t now_preemptions = preemptions();
      const Clock::time_point now_time = Clock::now();
      // One preemption per period is caused by this thread itself. Without others there is nothing to read.
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
  recent_[next_] = {period.wall_s, period.waited_s};
  next_ = (next_ + 1) % recent_.size();
  double wall_s = 0, waited_s = 0;
  for (const Wait& wait : recent_) {
    wall_s += wait.wall_s;
    waited_s += wait.waited_s;
  }
  // Periods that are still missing count as periods without waiting.
  wall_s = std::max(wall_s, static_cast<double>(recent_.size()) * period.wall_s);
  const bool waiting = waited_s > kShare * wall_s;
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
  // If the user asked for fewer compute threads than processors, more idle threads must be held.
  const int threads = std::max(2, omp_get_num_procs() - compute_threads() + 2);
  // libgomp gives this thread a pool of its own, which ends with the thread. The threads of the pool sleep.
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
  made_ = pthread_create(&thread_, nullptr, hold, this) == 0;  // without the thread, spinning stays long
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
  if (dlsym(RTLD_DEFAULT, "kmp_set_blocktime") != nullptr) return;  // LLVM's OpenMP library, used by builds with clang
  static Watch watch;
}

}  // namespace galley
