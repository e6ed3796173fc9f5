#pragma once
// ProfiledWork: the steps that galley-profile records: updates or forward passes of a recipe, on its data or on random batches.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/optim/schedule.h"
#include "libcore/profiler/report.h"
#include "libcore/profiler/statistics.h"
#include "libcore/train/workload.h"

namespace galley {

struct Batch;
class TrainStep;

/// Work that can be run step by step under a profiler.
class ProfiledWork {
 public:
  /// Opens the data, compiles and allocates memory according to the recipe's section `profile`. The recipe must outlive the work.
  explicit ProfiledWork(const Recipe& recipe);
  ~ProfiledWork();
  ProfiledWork(const ProfiledWork&) = delete;
  ProfiledWork& operator=(const ProfiledWork&) = delete;

  /// Runs one step.
  void run(NodeObserver* observer = nullptr);
  /// Restarts the loader and discards its prefetched batches.
  void restart_data();

  WorkKind kind() const { return kind_; }
  int64_t batch() const { return plan_.global; }
  bool synthetic() const { return loader_split_.empty(); }
  int64_t threads() const { return session_.threads(); }
  /// Memory in use: of a device with memory of its own the most that was allocated, else resident memory of this process.
  int64_t memory_bytes() const;
  /// The number of batches that the loader prefetches: the number of warm-up steps after a restart.
  int64_t prefetch() const { return prefetch_; }
  /// Facts for the rules of advice.
  ProfileFacts facts() const;
  std::vector<ProfiledProgram> compilations() const;

 private:
  void choose_kind();
  void open_data();
  void make_update();
  void make_forward();
  const Batch& next();

  const Recipe& recipe_;
  Session session_;
  Engine engine_;
  WorkKind kind_ = WorkKind::kForward;
  BatchPlan plan_;
  std::string loader_split_;  // empty: random batches
  int64_t workers_ = 0, prefetch_ = 0, steps_ = 0;
  BatchTypes types_;
  RunLength length_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<Batch> random_;
  std::unique_ptr<TrainStep> update_;
  std::unique_ptr<Execution> forward_;
  std::vector<std::string> fusions_declined_;
  std::map<std::string, std::string> float_reasons_;  // why layers of a quantized model are in float, by name of the layer
};

/// Runs the work with a schedule. Calls `progress` with finished and total steps, outside the timed parts. Ends early if `stop`, called
/// between steps, returns true. Returns whether the whole schedule was recorded.
bool record(ProfiledWork& work, const ProfileSchedule& schedule, Recorder& recorder,
            const std::function<void(int64_t done, int64_t all)>& progress = {}, const std::function<bool()>& stop = {});
/// The schedule in the section `profile` of a recipe.
ProfileSchedule schedule_of(const Recipe& recipe);

/// Compares a changed recipe with its base in turns (base, changed, base), in seconds per step and sample. Restarts the loaders for each
/// turn. Runs at least three rounds, until `max_time_s` has passed or `stop` returns true. Both recipes hold their memory at the same time.
RoundComparison compare_work(const Recipe& base, const Recipe& changed, double max_time_s, const std::function<bool()>& stop = {});

/// Measures the cost of recording: compares steps without and with a recorder in turns (without, with, without). Runs at least six rounds,
/// until `max_time_s` has passed or `stop` returns true. After a very early stop the comparison is empty.
RoundComparison recording_overhead(ProfiledWork& work, double max_time_s, const std::function<bool()>& stop = {});

}  // namespace galley
