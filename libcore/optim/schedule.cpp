#include "libcore/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 2> kUpdateNames{"step", "epoch"};
constexpr double kUnknown = std::numeric_limits<double>::infinity();
/// Tolerance, in steps, for products of epochs and steps per epoch that should be whole numbers.
constexpr double kSlack = 1e-9;

double whole_up(double steps) { return std::ceil(steps - kSlack * std::max(1.0, steps)); }
double whole_down(double ratio) { return std::floor(ratio + kSlack * std::max(1.0, ratio)); }

/// t/T; 1 at the end and later.
double share(const PhasePoint& at) { return at.length > 0 ? std::min(1.0, at.t / at.length) : 1; }

Duration duration_of(const std::string& text) {
  Duration duration;
  duration.parse(text);
  return duration;
}

constexpr ComponentKind kSchedules[] = {
    {"constant", "keeps the value", make_options<ConstantPhase>},
    {"linear", "a straight line from one value to another: warm-up", make_options<LinearPhase>},
    {"cosine", "half a cosine wave down to a value", make_options<CosinePhase>},
    {"step", "times gamma every step_size", make_options<StepPhase>},
    {"multi_step", "times gamma at each milestone", make_options<MultiStepPhase>},
    {"exponential", "times gamma at each step, or epoch", make_options<ExponentialPhase>},
    {"polynomial", "a power of what remains, down to a value", make_options<PolynomialPhase>},
};

}  // namespace

double steps_of(const Duration& duration, const RunLength& run) {
  const auto per_step = [&](double amount, std::string_view unit) {
    GALLEY_CHECK(amount > 0, "the duration '", duration.str(), "' cannot be converted to steps: this run does not know the number of ",
                 unit, " per step; use a duration in steps");
    return whole_up(duration.value / amount);
  };
  if (run.by_time && duration.unit != DurationUnit::kPercent) {
    throw Error(
        ErrorCode::kRecipe,
        cat("'", duration.str(), "' cannot be used in the schedule of a run that ends by time, because its number of steps is unknown"))
        .key("train.schedule")
        .suggest("set all phases in percent, or train.duration in epochs or steps");
  }
  switch (duration.unit) {
    case DurationUnit::kSteps: return whole_up(duration.value);
    case DurationUnit::kSamples: return per_step(run.samples_per_step, "samples");
    case DurationUnit::kTokens: return per_step(run.tokens_per_step, "tokens");
    case DurationUnit::kEpochs:
      GALLEY_CHECK(run.steps_per_epoch > 0, "the duration '", duration.str(),
                   "' cannot be converted to steps: this run has no epochs; use a duration in steps");
      return whole_up(duration.value * run.steps_per_epoch);
    case DurationUnit::kPercent:
      GALLEY_CHECK(run.total_steps > 0, "'", duration.str(),
                   "' of a run of unknown length; set train.duration in steps, samples or epochs");
      return whole_up(duration.value / 100 * static_cast<double>(run.total_steps));
    case DurationUnit::kSeconds: break;
  }
  fail(ErrorCode::kRecipe, "a time ('", duration.str(), "') can only end a run; use a duration in steps, epochs, samples or percent");
}

void SchedulePhase::phase_options(OptionVisitor& v) {
  v.option({.name = "duration", .doc = "duration of the phase; default: the rest of the run"}, duration);
  v.choice({.name = "update", .doc = "change at each step, or hold the value over an epoch"}, update, kUpdateNames);
}

void ConstantPhase::options(OptionVisitor& v) { phase_options(v); }
double ConstantPhase::value(const PhasePoint&, double start, double) const { return start; }

void LinearPhase::options(OptionVisitor& v) {
  v.option({.name = "from", .doc = "first value; default: the last value of the previous phase, else 1x"}, from);
  v.text({.name = "to", .doc = "last value of the phase"}, to);
  phase_options(v);
}
double LinearPhase::value(const PhasePoint& at, double start, double lr) const {
  const double low = from ? from->of(lr) : start;
  return low + (to.of(lr) - low) * share(at);
}

void CosinePhase::options(OptionVisitor& v) {
  v.text({.name = "to", .doc = "last value of the phase"}, to);
  phase_options(v);
}
double CosinePhase::value(const PhasePoint& at, double start, double lr) const {
  const double end = to.of(lr);
  return end + (start - end) * (1 + std::cos(std::numbers::pi * share(at))) / 2;
}

void StepPhase::options(OptionVisitor& v) {
  v.text({.name = "step_size", .doc = "duration between two changes"}, step_size);
  v.option({.name = "gamma", .doc = "factor of a change", .min = 0}, gamma);
  phase_options(v);
}
void StepPhase::check(const RunLength& run) const {
  GALLEY_CHECK(steps_of(step_size, run) >= 1, "step_size must be at least one step, not '", step_size.str(), "'");
}
double StepPhase::value(const PhasePoint& at, double start, double) const {
  // An epoch may not be a whole number of steps. The n-th change is at the first step after n times the size, without rounding the size
  // first.
  const double size = step_size.unit == DurationUnit::kEpochs ? step_size.value * at.run->steps_per_epoch : steps_of(step_size, *at.run);
  return start * std::pow(gamma, whole_down(at.t / size));
}

void MultiStepPhase::options(OptionVisitor& v) {
  v.option(
      {.name = "milestones", .doc = "times of the changes, from the start of the phase, e.g. [30 epochs, 60 epochs]", .required = true},
      milestones);
  v.option({.name = "gamma", .doc = "factor of a change", .min = 0}, gamma);
  phase_options(v);
}
void MultiStepPhase::check(const RunLength& run) const {
  for (const std::string& milestone : milestones) (void)steps_of(duration_of(milestone), run);
}
double MultiStepPhase::value(const PhasePoint& at, double start, double) const {
  const auto reached = std::count_if(milestones.begin(), milestones.end(),
                                     [&](const std::string& milestone) { return steps_of(duration_of(milestone), *at.run) <= at.t; });
  return start * std::pow(gamma, static_cast<double>(reached));
}

void ExponentialPhase::options(OptionVisitor& v) {
  v.option({.name = "gamma", .doc = "factor per step, or per epoch", .min = 0}, gamma);
  phase_options(v);
}
void ExponentialPhase::check(const RunLength& run) const {
  GALLEY_CHECK(!run.by_time,
               "the schedule's phase exponential counts steps, but a run that ends by time has an unknown number of steps; use cosine "
               "or polynomial");
}
double ExponentialPhase::value(const PhasePoint& at, double start, double) const { return start * std::pow(gamma, at.count); }

void PolynomialPhase::options(OptionVisitor& v) {
  v.option({.name = "power", .doc = "exponent of the remaining fraction", .min = 0}, power);
  v.text({.name = "to", .doc = "last value of the phase"}, to);
  phase_options(v);
}
double PolynomialPhase::value(const PhasePoint& at, double start, double lr) const {
  const double end = to.of(lr);
  return end + (start - end) * std::pow(1 - share(at), power);
}

ComponentKinds schedules() { return kSchedules; }

RunLength schedule_length(const std::vector<Component>& phases, const RunLength& run) {
  if (run.total_steps > 0) return run;
  const auto relative = [](const Component& component) {
    const auto percent = [](const Duration& duration) { return duration.unit == DurationUnit::kPercent; };
    const auto* phase = component.as<SchedulePhase>();
    if (phase->duration ? percent(*phase->duration) : phase->needs_length()) return true;
    if (const auto* step = component.as<StepPhase>()) return percent(step->step_size);
    const auto* multi_step = component.as<MultiStepPhase>();
    return multi_step != nullptr && std::any_of(multi_step->milestones.begin(), multi_step->milestones.end(),
                                                [&](const std::string& milestone) { return percent(duration_of(milestone)); });
  };
  if (std::none_of(phases.begin(), phases.end(), relative)) return run;
  return {.total_steps = kTimeTicks, .by_time = true};
}

int64_t schedule_position(const RunLength& run, int64_t step, double share) {
  return run.by_time ? 1 + std::clamp<int64_t>(static_cast<int64_t>(share * kTimeTicks), 0, kTimeTicks - 1) : step;
}

Schedule::Schedule(std::vector<Component> phases, const RunLength& run) : phases_(std::move(phases)), run_(run) {
  double position = 0;
  for (size_t i = 0; i < phases_.size(); ++i) {
    const auto* phase = phases_[i].as<SchedulePhase>();
    GALLEY_ASSERT(phase != nullptr, "component ", phases_[i].type, " is not a phase of a schedule");
    GALLEY_CHECK(phase->duration || i + 1 == phases_.size(), "phase ", i, " (", phases_[i].type,
                 ") of the schedule has no duration, but another phase follows; set its duration");
    GALLEY_CHECK(phase->update == ScheduleUpdate::kStep || run.steps_per_epoch > 0, "phase ", i, " (", phases_[i].type,
                 ") of the schedule has update: epoch, but this run has no epochs; use update: step");
    phase->check(run);
    double end = kUnknown;
    if (phase->duration) {
      end = position + steps_of(*phase->duration, run);
    } else if (run.total_steps > 0) {
      end = std::max(position, static_cast<double>(run.total_steps));
    } else {
      GALLEY_CHECK(!phase->needs_length(), "phase ", i, " (", phases_[i].type,
                   ") of the schedule lasts to the end of a run of unknown length; set its duration in steps");
    }
    spans_.push_back({phase, position, end});
    position = end;
  }
}

PhasePoint Schedule::point(const Span& span, double position) const {
  PhasePoint at{.t = position - span.begin, .length = span.end - span.begin, .count = position - span.begin, .run = &run_};
  if (span.phase->update == ScheduleUpdate::kStep) return at;
  const double per_epoch = run_.steps_per_epoch;
  const double epoch = whole_down(position / per_epoch);
  at.t = std::max(0.0, whole_up(epoch * per_epoch) - span.begin);
  at.count = std::max(0.0, epoch - whole_down(span.begin / per_epoch));
  return at;
}

double Schedule::value(int64_t step, double lr) const {
  GALLEY_ASSERT(step >= 1, "steps count from 1");
  const double position = static_cast<double>(step - 1);
  double value = lr;
  for (const Span& span : spans_) {
    if (position < span.end) return span.phase->value(point(span, position), value, lr);
    if (span.end > span.begin) value = span.phase->value(point(span, span.end), value, lr);
  }
  return value;
}

double ema_decay(double decay, int64_t update, bool warmup) {
  const double n = static_cast<double>(update);
  return warmup ? std::min(decay, (1 + n) / (10 + n)) : decay;
}

}  // namespace galley
