#include "libcore/quantize/quantization_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "libcore/quantize/layer_times.h"

namespace galley {
namespace {

constexpr int kTimedRounds = 10;

std::vector<std::string> all_but(const std::vector<std::string>& layers, const std::string& layer) {
  std::vector<std::string> others;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(others), [&](const std::string& other) { return other != layer; });
  return others;
}

/// Orders by SQNR: smaller is more sensitive, NaN is the most sensitive.
bool more_sensitive(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

class Search {
 public:
  Search(const Session& session, ModelQuantizer& quantizer, QuantizationTrials& trials, const GoalSection& goal, const TrialHooks& hooks,
         const std::function<void(const SearchTrial&)>& progress)
      : session_(session),
        quantizer_(quantizer),
        trials_(trials),
        goal_(goal),
        hooks_(hooks),
        progress_(progress),
        began_(std::chrono::steady_clock::now()) {}

  SearchResult run() {
    const SearchTrial first = attempt({});
    TrialSetting base;
    if (!first.met) base = best_observers(first);
    const SearchTrial* reached = &result_.trials[best()];
    if (!reached->met && !over()) leave_in_float(base);
    if (result_.trials[best()].met && goal_.objective == GoalObjective::kLatency && !over()) leave_slow_in_float();
    result_.best = best();
    mark_pareto();
    return std::move(result_);
  }

 private:
  bool over() {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    result_.out_of_time = result_.out_of_time || passed > goal_.time_budget.value;
    result_.stopped = result_.stopped || hooks_.stop();
    return result_.out_of_time || result_.stopped;
  }

  SearchTrial attempt(const TrialSetting& setting) {
    for (const SearchTrial& made : result_.trials) {
      if (made.trial.setting.key() == setting.key()) return made;
    }
    Trial trial = known_or_made(trials_, hooks_, setting, {.sqnr = false, .metrics = true, .latency = true});
    result_.trials.push_back(judge(goal_, trials_.float_metrics(), std::move(trial)));
    progress_(result_.trials.back());
    return result_.trials.back();
  }

  /// The best of the trials so far.
  size_t best() const {
    const auto price = [&](const SearchTrial& t) {
      return goal_.objective == GoalObjective::kLatency ? t.trial.latency_s : static_cast<double>(t.trial.bytes);
    };
    size_t best = 0;
    for (size_t i = 1; i < result_.trials.size(); ++i) {
      const SearchTrial &a = result_.trials[i], &b = result_.trials[best];
      const bool better = a.met != b.met ? a.met
                          : a.met        ? price(a) < price(b)
                                         : a.drop < b.drop || (std::isnan(b.drop) && !std::isnan(a.drop));
      if (better) best = i;
    }
    return best;
  }

  /// The observers with the smallest loss.
  TrialSetting best_observers(const SearchTrial& first) {
    TrialSetting base;
    const std::shared_ptr<const QuantizationPlan> plan = trials_.quantize({}).plan;
    if (plan->has_f8()) return base;  // the observers below look for the error of integers
    double least = first.drop;
    const auto keep = [&](const TrialSetting& setting) {
      if (over()) return;
      const SearchTrial trial = attempt(setting);
      if (trial.drop < least) least = trial.drop, base = setting;
    };
    if (!plan->values.empty()) {
      for (ObserverType type : {ObserverType::kMse, ObserverType::kEntropy, ObserverType::kHistogram, ObserverType::kMinMax}) {
        TrialSetting setting;
        setting.activations = type;
        keep(setting);
      }
    }
    TrialSetting setting = base;
    setting.weights = ObserverType::kMse;
    keep(setting);
    return base;
  }

  /// Leaves layers in float until the goal is met, then tries to quantize as many of them as possible.
  void leave_in_float(TrialSetting base) {
    std::vector<std::pair<double, std::string>> order;  // SQNR with only this layer quantized
    for (const std::string& layer : trials_.layers()) {
      if (over()) break;
      TrialSetting setting = base;
      setting.float_layers = all_but(trials_.layers(), layer);
      order.emplace_back(known_or_made(trials_, hooks_, setting, {}).sqnr_db, layer);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return more_sensitive(a.first, b.first); });
    const auto with = [&](size_t count) {
      TrialSetting setting = base;
      for (size_t i = 0; i < count; ++i) setting.float_layers.push_back(order[i].second);
      return setting;
    };
    size_t failed = 0, enough = 0;
    for (size_t count = 1; enough == 0 && !over(); count = std::min(2 * count, order.size())) {
      if (attempt(with(count)).met) {
        enough = count;
      } else {
        failed = count;
      }
      if (count == order.size()) break;
    }
    if (enough == 0) return;
    while (enough - failed > 1 && !over()) {
      const size_t middle = (enough + failed) / 2;
      (attempt(with(middle)).met ? enough : failed) = middle;
    }
    // The order is that of single layers. Together, some of them may not be necessary; try the least sensitive first.
    TrialSetting kept = with(enough);
    for (size_t i = enough; i-- > 0 && kept.float_layers.size() > 1 && !over();) {
      TrialSetting fewer = kept;
      fewer.float_layers = all_but(kept.float_layers, order[i].second);
      if (attempt(fewer).met) kept = fewer;
    }
  }

  void leave_slow_in_float() {
    TrialSetting setting = result_.trials[best()].trial.setting;
    const QuantizationTimes times = time_layers(session_, quantizer_, trials_.quantize(setting), 1, kTimedRounds);
    const size_t before = setting.float_layers.size();
    for (const std::string& layer : trials_.layers()) {
      const auto real = times.real.layers.find(layer), integer = times.quantized.layers.find(layer);
      const bool there = std::find(setting.float_layers.begin(), setting.float_layers.end(), layer) != setting.float_layers.end();
      if (!there && real != times.real.layers.end() && integer != times.quantized.layers.end() &&
          integer->second.seconds > real->second.seconds)
        setting.float_layers.push_back(layer);
    }
    if (setting.float_layers.size() > before) attempt(setting);
  }

  void mark_pareto() {
    for (SearchTrial& a : result_.trials) {
      a.pareto = std::none_of(result_.trials.begin(), result_.trials.end(), [&](const SearchTrial& b) {
        const bool as_good = b.drop <= a.drop && b.trial.latency_s <= a.trial.latency_s && b.trial.bytes <= a.trial.bytes;
        return as_good && (b.drop < a.drop || b.trial.latency_s < a.trial.latency_s || b.trial.bytes < a.trial.bytes);
      });
    }
  }

  const Session& session_;
  ModelQuantizer& quantizer_;
  QuantizationTrials& trials_;
  const GoalSection& goal_;
  const TrialHooks& hooks_;
  const std::function<void(const SearchTrial&)>& progress_;
  const std::chrono::steady_clock::time_point began_;
  SearchResult result_;
};

}  // namespace

Trial known_or_made(QuantizationTrials& trials, const TrialHooks& hooks, const TrialSetting& setting, const TrialQuestions& questions) {
  if (const std::optional<Trial> known = hooks.find(setting, questions)) return *known;
  Trial trial = trials.run(setting, questions);
  hooks.add(trial);
  return trial;
}

std::vector<LayerSensitivity> measure_sensitivity(QuantizationTrials& trials, const std::string& metric, const TrialHooks& hooks,
                                                  const std::function<void(int64_t, int64_t)>& progress) {
  const auto count = static_cast<int64_t>(2 * trials.layers().size());
  int64_t done = 0;
  const auto attempt = [&](std::vector<std::string> float_layers) {
    TrialSetting setting;
    setting.float_layers = std::move(float_layers);
    progress(done++, count);
    return known_or_made(trials, hooks, setting, {.metrics = !metric.empty()});
  };
  std::vector<LayerSensitivity> result;
  for (const std::string& layer : trials.layers()) {
    if (hooks.stop()) break;
    result.push_back({layer, attempt(all_but(trials.layers(), layer)), attempt({layer})});
  }
  const auto worth = [&](const LayerSensitivity& layer) {
    if (metric.empty()) return layer.only.sqnr_db;
    const double value = find_metric(layer.only.metrics, metric);
    return larger_is_better(metric) ? value : -value;
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const LayerSensitivity& a, const LayerSensitivity& b) { return more_sensitive(worth(a), worth(b)); });
  return result;
}

SearchTrial judge(const GoalSection& goal, const MetricValues& before, Trial trial) {
  const double then = find_metric(before, goal.metric), now = find_metric(trial.metrics, goal.metric);
  if (std::isnan(then))
    throw Error(ErrorCode::kNumeric, cat("the float model has no finite ", goal.metric, " that quantization could keep"))
        .key("quantize.goal.metric")
        .suggest("galley-evaluate shows its metrics");
  const double sign = larger_is_better(goal.metric) ? 1 : -1;
  SearchTrial judged{.trial = std::move(trial), .drop = sign * (then - now), .met = !std::isnan(now)};
  if (goal.max_drop)
    judged.met =
        judged.met && judged.drop <= (goal.max_drop->relative ? goal.max_drop->value / 100 * std::fabs(then) : goal.max_drop->value);
  if (goal.min) judged.met = judged.met && sign * (now - *goal.min) >= 0;
  return judged;
}

SearchResult search_quantization(const Session& session, ModelQuantizer& quantizer, QuantizationTrials& trials, const GoalSection& goal,
                                 const TrialHooks& hooks, const std::function<void(const SearchTrial&)>& progress) {
  return Search(session, quantizer, trials, goal, hooks, progress).run();
}

}  // namespace galley
