#include "libcore/profiler/timer.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMinWatch_s = 0.2;
/// Cores used by other programs from which a remark is shown. A program that computes uses 1 if it can; the value is chosen well below that
/// and has not been calibrated on a quiet machine.
constexpr double kOthersThreshold = 0.1;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double time_once(const std::function<void()>& work, int64_t repetitions) {
  const auto began = Clock::now();
  for (int64_t i = 0; i < repetitions; ++i) work();
  return seconds_since(began) / static_cast<double>(repetitions);
}

bool narrow_enough(const Series& series, double relative_error) {
  std::vector<double> sorted = series.seconds;
  std::sort(sorted.begin(), sorted.end());
  const Interval interval = median_interval(sorted);
  return interval.high - interval.low <= 2 * relative_error * quantile(sorted, 0.5);
}

/// CPU seconds used by this process and its finished children.
double own_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
  }
  return seconds;
}

/// Processors that this process may run on; in a container the others do not matter.
std::vector<int> processors() {
  cpu_set_t set;
  std::vector<int> numbers;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return numbers;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) numbers.push_back(i);
  }
  return numbers;
}

double ticks_per_s() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

std::string proc_stat() {
  std::ostringstream text;
  text << std::ifstream("/proc/stat").rdbuf();
  return text.str();
}

}  // namespace

void empty_caches() {
  constexpr int64_t kBytes = int64_t{96} << 20;
  static const std::unique_ptr<std::byte[]> buffer(new std::byte[kBytes]);
  static int value = 0;
  ++value;
  parallel_for(kBytes, 1 << 16,
               [](int64_t begin, int64_t end) { std::fill(buffer.get() + begin, buffer.get() + end, static_cast<std::byte>(value)); });
}

std::vector<Series> time_interleaved(std::span<const std::function<void()>> candidates, const TimerOptions& options) {
  GALLEY_ASSERT(options.min_runs >= 1 && options.max_time_s > 0);
  const auto started = Clock::now();
  const auto stopped = [&] { return options.stop && options.stop(); };
  std::vector<Series> series(candidates.size());
  const auto sample = [&](size_t i) {
    if (options.cold) empty_caches();
    return time_once(candidates[i], series[i].repetitions);
  };
  // The first round (compilation, page faults, cold caches) never counts. It determines how many repetitions a sample needs.
  std::vector<double> last(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (stopped()) return series;
    time_once(candidates[i], 1);
    last[i] = time_once(candidates[i], 1);
    if (!options.cold)
      series[i].repetitions =
          std::clamp<int64_t>(static_cast<int64_t>(std::ceil(options.min_sample_s / std::max(last[i], 1e-9))), 1, 1 << 20);
    series[i].warmup_rounds = 2;
  }
  for (int64_t round = 0; options.warmup < 0 ? seconds_since(started) < options.max_time_s / 4 : round < options.warmup; ++round) {
    bool stable = round > 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double now = sample(i);
      stable = stable && std::abs(now - last[i]) <= 0.05 * last[i];
      last[i] = now;
      ++series[i].warmup_rounds;
    }
    if ((options.warmup < 0 && stable) || stopped()) break;
  }
  for (Series& one : series) one.seconds.reserve(4096);
  while (!stopped()) {
    for (size_t i = 0; i < candidates.size(); ++i) series[i].seconds.push_back(sample(i));
    const auto runs = static_cast<int64_t>(series.empty() ? 0 : series[0].seconds.size());
    const bool enough = runs >= options.min_runs;
    bool all_narrow = enough;
    // The check sorts the samples, so do it less often as they grow; otherwise it would affect the measurement.
    const bool look = enough && (runs < 64 || runs % 64 == 0);
    if (look) {
      for (Series& one : series) all_narrow = (one.converged = narrow_enough(one, options.relative_error)) && all_narrow;
    }
    const bool out_of_time = seconds_since(started) >= options.max_time_s;
    if (candidates.empty() || (look && all_narrow) || out_of_time) break;
  }
  for (Series& one : series)
    one.converged = static_cast<int64_t>(one.seconds.size()) >= options.min_runs && narrow_enough(one, options.relative_error);
  return series;
}

CpuSeconds cpu_seconds(const std::string& proc_stat, const std::vector<int>& processors, double ticks_per_s) {
  CpuSeconds sum;
  std::istringstream lines(proc_stat);
  for (std::string line; std::getline(lines, line);) {
    int processor = 0;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    const int found = std::sscanf(line.c_str(), "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf", &processor, &user, &nice, &system, &idle, &iowait,
                                  &irq, &softirq, &steal);
    if (found != 9) continue;
    if (std::find(processors.begin(), processors.end(), processor) == processors.end()) continue;
    sum.busy += (user + nice + system + irq + softirq) / ticks_per_s;
    sum.stolen += steal / ticks_per_s;
    sum.all += (user + nice + system + idle + iowait + irq + softirq + steal) / ticks_per_s;
  }
  return sum;
}

MachineWatch::MachineWatch()
    : began_(Clock::now()),
      processors_(processors()),
      begun_(cpu_seconds(proc_stat(), processors_, ticks_per_s())),
      own_begun_(own_seconds()) {}

MachineState MachineWatch::state() const {
  MachineState state;
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") >> state.governor;
  const CpuSeconds now = cpu_seconds(proc_stat(), processors_, ticks_per_s());
  const double wall_s = seconds_since(began_);
  // The kernel counts in ticks; shorter times are noise.
  if (wall_s < kMinWatch_s || now.all <= begun_.all) return state;
  state.steal = (now.stolen - begun_.stolen) / (now.all - begun_.all);
  state.others = std::max(0.0, (now.busy - begun_.busy) - (own_seconds() - own_begun_)) / wall_s;
  return state;
}

std::vector<std::string> MachineWatch::remarks(int threads) const {
  const MachineState now = state();
  std::vector<std::string> remarks;
  const int cores = available_cores();
  char text[200];
  if (now.others > kOthersThreshold) {
    std::snprintf(text, sizeof text,
                  "other programs used %.1f of %zu cores during the measurement, which makes times longer and less certain", now.others,
                  processors_.size());
    remarks.emplace_back(text);
  }
  if (now.steal > 0.01) {
    std::snprintf(text, sizeof text, "other virtual machines took %.1f %% of the CPU time", 100 * now.steal);
    remarks.emplace_back(text);
  }
  if (!now.governor.empty() && now.governor != "performance")
    remarks.push_back("the frequency governor is " + now.governor + ": clock rates change with the load");
  if (threads > cores) remarks.push_back(cat("the run uses ", threads, " threads on ", cores, " cores"));
  return remarks;
}

}  // namespace galley
