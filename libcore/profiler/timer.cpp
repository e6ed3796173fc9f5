#include "libcore/profiler/timer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;
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

/// Jiffies by kind, of all cores: user, nice, system, idle, iowait, irq, softirq, steal.
std::vector<int64_t> cpu_times() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line.substr(std::min<size_t>(line.size(), 4)));
  std::vector<int64_t> times;
  for (int64_t value = 0; times.size() < 8 && words >> value;) times.push_back(value);
  return times;
}

}  // namespace

void empty_caches() {
  constexpr int64_t kBytes = int64_t{96} << 20;
  static const std::unique_ptr<std::byte[]> buffer(new std::byte[kBytes]);
  static int value = 0;
  ++value;
  parallel_for(kBytes, 1 << 16, [](int64_t begin, int64_t end) { std::fill(buffer.get() + begin, buffer.get() + end, static_cast<std::byte>(value)); });
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
  // The first round compiles, touches pages, fills caches: it never counts, and says how many repetitions a sample needs.
  std::vector<double> last(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (stopped()) return series;
    time_once(candidates[i], 1);
    last[i] = time_once(candidates[i], 1);
    if (!options.cold) series[i].repetitions = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(options.least_sample_s / std::max(last[i], 1e-9))), 1, 1 << 20);
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
    // Looking costs a sort: at every run at first, then ever more rarely, so that the look is not what is measured between runs.
    const bool look = enough && (runs < 64 || runs % 64 == 0);
    if (look) {
      for (Series& one : series) all_narrow = (one.converged = narrow_enough(one, options.relative_error)) && all_narrow;
    }
    const bool out_of_time = seconds_since(started) >= options.max_time_s;
    if (candidates.empty() || (look && all_narrow) || out_of_time) break;
  }
  for (Series& one : series) one.converged = static_cast<int64_t>(one.seconds.size()) >= options.min_runs && narrow_enough(one, options.relative_error);
  return series;
}

MachineWatch::MachineWatch() : begun_(cpu_times()) {}

MachineState MachineWatch::state() const {
  MachineState state;
  std::ifstream("/proc/loadavg") >> state.load;
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") >> state.governor;
  const std::vector<int64_t> now = cpu_times();
  if (now.size() == 8 && begun_.size() == 8) {
    int64_t all = 0;
    for (size_t i = 0; i < 8; ++i) all += now[i] - begun_[i];
    if (all > 0) state.steal = static_cast<double>(now[7] - begun_[7]) / static_cast<double>(all);
  }
  return state;
}

std::vector<std::string> MachineWatch::remarks(int threads) const {
  const MachineState now = state();
  std::vector<std::string> remarks;
  const int cores = available_cores();
  char text[200];
  if (now.load > static_cast<double>(std::max(threads, 1)) + 0.7) {
    std::snprintf(text, sizeof text, "load %.1f with %d threads: other programs run", now.load, threads);
    remarks.emplace_back(text);
  }
  if (now.steal > 0.01) {
    std::snprintf(text, sizeof text, "%.1f %% of the time went to other virtual machines", 100 * now.steal);
    remarks.emplace_back(text);
  }
  if (!now.governor.empty() && now.governor != "performance") remarks.push_back("frequency governor is " + now.governor + ": clocks change with the load");
  if (threads > cores) remarks.push_back(cat(threads, " threads on ", cores, " cores"));
  return remarks;
}

}  // namespace galley
