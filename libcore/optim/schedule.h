#pragma once
// Learning-rate schedules: phases in sequence. A schedule is a pure function of the step, computed on the host, so a resumed
// run needs no state for it. Update k (from 1) of a phase of T steps uses t = k-1.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"

namespace galley {

/// What turns durations into steps.
struct RunLength {
  int64_t total_steps = 0;     // 0: not known (a run that is stopped by time)
  double steps_per_epoch = 0;  // 0: not known (a stream)
  double samples_per_step = 0;
  double tokens_per_step = 0;  // 0: not text
  /// The run ends by time and its schedule takes percent of that time: a schedule's position is then in ticks, kTimeTicks of them in all
  /// (= total_steps), and no other duration has a meaning.
  bool by_time = false;
};
constexpr int64_t kTimeTicks = 1'000'000;

/// The RunLength for the schedule of a run that ends by time: in ticks where a phase is told in percent or needs the run's end, else
/// `run`, whose steps do without either.
RunLength schedule_length(const std::vector<Component>& phases, const RunLength& run);
/// The position to ask a schedule for: the step, or the tick of the share (0..1) of the time that has passed.
int64_t schedule_position(const RunLength& run, int64_t step, double share);

/// Steps of a duration: the first step that begins at or after its end. Percent is of total_steps. Throws where the run does
/// not know the unit; a time is always an error: it only stops a run.
double steps_of(const Duration& duration, const RunLength& run);

/// Where in its phase a step is.
struct PhasePoint {
  double t = 0;       // steps since the phase began; with `update: epoch` those at the epoch's begin
  double length = 0;  // T
  double count = 0;   // values before this one in the phase: t, or epochs
  const RunLength* run = nullptr;
};

/// The value changes at each step, or at each epoch (held over it, as torchvision's scripts do).
enum class ScheduleUpdate { kStep, kEpoch };

/// Base of the phases.
struct SchedulePhase : Options {
  std::optional<Duration> duration;  // empty: the rest of the run
  ScheduleUpdate update = ScheduleUpdate::kStep;

  /// The learning rate. `from`: where the phase before ended, or the group's lr; `lr`: the group's lr.
  virtual double value(const PhasePoint& at, double from, double lr) const = 0;
  /// Does the value depend on how long the phase is?
  virtual bool needs_length() const { return true; }
  /// Throws where a parameter does not fit the run.
  virtual void check(const RunLength&) const {}

 protected:
  void phase_options(OptionVisitor& v);
};

template <class Self>
struct SchedulePhaseOf : SchedulePhase {
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// Keeps what the phase before ended with.
struct ConstantPhase : SchedulePhaseOf<ConstantPhase> {
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
};
/// from + (to - from) t/T.
struct LinearPhase : SchedulePhaseOf<LinearPhase> {
  std::optional<Multiple> from;  // empty: where the phase before ended
  Multiple to{1, true};
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
};
/// to + (from - to) (1 + cos(pi t/T)) / 2 (Loshchilov, Hutter 2017).
struct CosinePhase : SchedulePhaseOf<CosinePhase> {
  Multiple to{0, true};
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
};
/// from * gamma^floor(t / step_size).
struct StepPhase : SchedulePhaseOf<StepPhase> {
  Duration step_size{30, DurationUnit::kEpochs};
  double gamma = 0.1;
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
  void check(const RunLength& run) const override;
};
/// from * gamma^(milestones reached). Milestones are durations from the phase's begin.
struct MultiStepPhase : SchedulePhaseOf<MultiStepPhase> {
  std::vector<std::string> milestones;
  double gamma = 0.1;
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
  void check(const RunLength& run) const override;
};
/// from * gamma^n, n = steps (with `update: epoch`: epochs) since the phase began.
struct ExponentialPhase : SchedulePhaseOf<ExponentialPhase> {
  double gamma = 0.95;
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
  void check(const RunLength& run) const override;
};
/// to + (from - to) (1 - t/T)^power.
struct PolynomialPhase : SchedulePhaseOf<PolynomialPhase> {
  double power = 1;
  Multiple to{0, true};
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
};

/// constant, linear, cosine, step, multi_step, exponential, polynomial: structs derived from SchedulePhase.
ComponentKinds schedules();

class Schedule {
 public:
  /// Constant.
  Schedule() = default;
  /// Throws Error where a phase before the last has no duration, a unit is not known to the run, or a phase that needs its
  /// length is the rest of a run of unknown length.
  Schedule(std::vector<Component> phases, const RunLength& run);
  Schedule(const Schedule&) = delete;  // spans_ points into phases_
  Schedule& operator=(const Schedule&) = delete;
  Schedule(Schedule&&) = default;
  Schedule& operator=(Schedule&&) = default;

  /// Learning rate of update `step` (from 1; what schedule_position gives) for a group whose own rate is `lr`. After the last phase its end
  /// value stays.
  double value(int64_t step, double lr) const;

 private:
  struct Span {
    const SchedulePhase* phase;
    double begin, end;  // whole steps
  };
  PhasePoint point(const Span& span, double position) const;

  std::vector<Component> phases_;
  std::vector<Span> spans_;
  RunLength run_;
};

/// Decay of the moving average at its update n (from 0): with warm-up min(decay, (1+n)/(10+n)), as TensorFlow's
/// ExponentialMovingAverage with num_updates.
double ema_decay(double decay, int64_t update, bool warmup);

}  // namespace galley
