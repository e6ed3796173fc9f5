#pragma once
// ProfiledWork: the steps that galley-profile watches: updates or forward passes of a recipe, on its own data or on random batches.

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

class ProfiledWork {
 public:
  /// Opens the data, compiles and takes memory, as the recipe's section `profile` says. The recipe must outlive the work.
  explicit ProfiledWork(const Recipe& recipe);
  ~ProfiledWork();
  ProfiledWork(const ProfiledWork&) = delete;
  ProfiledWork& operator=(const ProfiledWork&) = delete;

  /// One step.
  void run(NodeObserver* observer = nullptr);
  /// Starts the loader anew: what it had prepared ahead is lost.
  void restart_data();

  WorkKind kind() const { return kind_; }
  int64_t batch() const { return plan_.global; }
  bool synthetic() const { return loader_split_.empty(); }
  int64_t threads() const { return session_.threads(); }
  /// Batches that a loader holds ready: steps after which a new one is in its stride.
  int64_t prefetch() const { return prefetch_; }
  /// What the rules of advice must know.
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
  std::string loader_split_;  // "": random batches
  int64_t workers_ = 0, prefetch_ = 0, steps_ = 0;
  BatchTypes types_;
  RunLength length_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<Batch> random_;
  std::unique_ptr<TrainStep> update_;
  std::unique_ptr<Execution> forward_;
  std::vector<std::string> fusions_declined_;
  std::map<std::string, std::string> float_reasons_;  // of layers that a quantized model has in float, by name
};

/// Runs the work as the recipe's schedule says. `progress` is told steps done and in all, outside of what is timed; `stop` is asked between
/// steps: true ends it early. Was all of it recorded?
bool record(ProfiledWork& work, const ProfileSchedule& schedule, Recorder& recorder,
            const std::function<void(int64_t done, int64_t all)>& progress = {}, const std::function<bool()>& stop = {});
ProfileSchedule schedule_of(const Recipe& recipe);

/// The changed recipe against the base, in turns (base, changed, base), on data loaded anew each time: for at least three rounds, until
/// `max_time_s` is up or `stop` says so. Both hold their memory at the same time. Seconds a step and sample are compared.
RoundComparison compare_work(const Recipe& base, const Recipe& changed, double max_time_s, const std::function<bool()>& stop = {});

/// Steps under a recorder against steps without one, in turns (without, with, without), for at least six rounds, until `max_time_s` is up
/// or `stop` says so: what recording costs. Of a very early stop the comparison is empty.
RoundComparison recording_overhead(ProfiledWork& work, double max_time_s, const std::function<bool()>& stop = {});

}  // namespace galley
