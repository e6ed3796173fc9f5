#pragma once
// Learning-rate schedules: sequences of phases. A schedule is a pure function of the step, computed on the host, so resuming a run needs no
// saved state. Update k (from 1) of a phase of T steps uses t = k-1.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"

namespace galley {

/// Facts about a run that convert durations to steps.
struct RunLength {
  int64_t total_steps = 0;     // 0: unknown (the run ends by time)
  double steps_per_epoch = 0;  // 0: unknown (a stream)
  double samples_per_step = 0;
  double tokens_per_step = 0;  // 0: not text
  /// The run ends by time, and its schedule uses percent of that time. Positions of the schedule are then ticks, kTimeTicks of them in
  /// total (= total_steps), and other durations are invalid.
  bool by_time = false;
};
/// Ticks of a run that ends by time.
constexpr int64_t kTimeTicks = 1'000'000;

/// The RunLength for the schedule of a run that ends by time: in ticks if a phase uses percent or needs the end of the run, else `run`
/// itself.
RunLength schedule_length(const std::vector<Component>& phases, const RunLength& run);
/// The position at which to evaluate a schedule: the step, or the tick for the share (0..1) of the time that has passed.
int64_t schedule_position(const RunLength& run, int64_t step, double share);

/// Converts a duration to steps: the first step that begins at or after its end. Percent is of total_steps. Throws Error if the run does
/// not know the unit, and for times, because a time can only end a run.
double steps_of(const Duration& duration, const RunLength& run);

/// A position within a phase.
struct PhasePoint {
  double t = 0;       // steps since the start of the phase; with `update: epoch`, at the start of the epoch
  double length = 0;  // T
  double count = 0;   // number of earlier values in the phase: t, or epochs
  const RunLength* run = nullptr;
};

/// Whether the value changes at each step, or at each epoch and stays constant within it (as torchvision's scripts do).
enum class ScheduleUpdate { kStep, kEpoch };

/// Base of the option structs of all phases.
struct SchedulePhase : Options {
  std::optional<Duration> duration;  // empty: the rest of the run
  ScheduleUpdate update = ScheduleUpdate::kStep;

  /// The learning rate at a position. `from` is the last value of the previous phase, or for the first phase the group's rate `lr`.
  virtual double value(const PhasePoint& at, double from, double lr) const = 0;
  /// Whether the value depends on the length of the phase.
  virtual bool needs_length() const { return true; }
  /// Throws Error if an option does not suit the run.
  virtual void check(const RunLength&) const {}

 protected:
  /// Declares the options that all phases have.
  void phase_options(OptionVisitor& v);
};

/// Implements clone() for the option struct Self.
template <class Self>
struct SchedulePhaseOf : SchedulePhase {
  std::unique_ptr<Options> clone() const override { return std::make_unique<Self>(static_cast<const Self&>(*this)); }
};

/// Keeps the last value of the previous phase.
struct ConstantPhase : SchedulePhaseOf<ConstantPhase> {
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
};
/// from + (to - from) t/T.
struct LinearPhase : SchedulePhaseOf<LinearPhase> {
  std::optional<Multiple> from;  // empty: the last value of the previous phase
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
/// from * gamma^(milestones reached). Milestones are durations from the start of the phase.
struct MultiStepPhase : SchedulePhaseOf<MultiStepPhase> {
  std::vector<std::string> milestones;
  double gamma = 0.1;
  void options(OptionVisitor& v) override;
  double value(const PhasePoint& at, double from, double lr) const override;
  bool needs_length() const override { return false; }
  void check(const RunLength& run) const override;
};
/// from * gamma^n, where n is the number of steps (with `update: epoch`: epochs) since the start of the phase.
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

/// The phases that a recipe may name: constant, linear, cosine, step, multi_step, exponential, polynomial.
ComponentKinds schedules();

/// A sequence of phases for one run.
class Schedule {
 public:
  /// A constant schedule: value() returns `lr`.
  Schedule() = default;
  /// Throws Error if a phase before the last has no duration, the run does not know a unit, or a phase that needs its length extends to the
  /// end of a run of unknown length.
  Schedule(std::vector<Component> phases, const RunLength& run);
  Schedule(const Schedule&) = delete;  // spans_ points into phases_
  Schedule& operator=(const Schedule&) = delete;
  Schedule(Schedule&&) = default;
  Schedule& operator=(Schedule&&) = default;

  /// Learning rate of update `step` (from 1; see schedule_position) for a group whose own rate is `lr`. After the last phase its final
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

/// Decay of the moving average at update n (from 0). With warm-up: min(decay, (1+n)/(10+n)), as TensorFlow's ExponentialMovingAverage with
/// num_updates.
double ema_decay(double decay, int64_t update, bool warmup);

}  // namespace galley
