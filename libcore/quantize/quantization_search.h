#pragma once
// Which layers are sensitive to quantization, and the search for a quantized model that meets quantize.goal.

#include <functional>
#include <string>
#include <vector>

#include "libcore/quantize/quantization_trials.h"
#include "libcore/recipe/quantize_section.h"

namespace galley {

struct TrialHooks {
  std::function<std::optional<Trial>(const TrialSetting& setting, const TrialQuestions& questions)> find =
      [](const TrialSetting&, const TrialQuestions&) { return std::nullopt; };  // in a journal
  std::function<void(const Trial& trial)> add = [](const Trial&) {};            // one was made
  std::function<bool()> stop = [] { return false; };                            // no further trial is wanted
};

/// The journal's trial, or one made now and noted.
Trial known_or_made(QuantizationTrials& trials, const TrialHooks& hooks, const TrialSetting& setting, const TrialQuestions& questions);

struct LayerSensitivity {
  std::string layer;
  Trial only;     // this layer quantized, all others in float
  Trial without;  // all but this layer quantized
};

/// Every layer alone and left out, most sensitive first: by `metric` (its loss when the layer alone is quantized), or, where that is "", by
/// the SQNR of the outputs. `progress` is told how many trials of how many are done. Ends early, with fewer layers, where `hooks` says
/// stop.
std::vector<LayerSensitivity> measure_sensitivity(QuantizationTrials& trials, const std::string& metric, const TrialHooks& hooks,
                                                  const std::function<void(int64_t done, int64_t of)>& progress);

struct SearchTrial {
  Trial trial;
  double drop = 0;  // of the goal's metric, in its unit; positive is worse
  bool met = false;
  bool pareto = false;  // no other trial is as good in drop, time and bytes, and better in one
};

struct SearchResult {
  std::vector<SearchTrial> trials;  // in the order made; never empty
  size_t best = 0;                  // of those that met the goal the best by its objective, else the one that lost least
  bool out_of_time = false, stopped = false;
};

/// Tries until the goal is met at the least price, or time_budget is over (a trial that runs is finished): the config as it is; other
/// observers; then layers in float, the most sensitive first, doubling their number until the goal is met; then, of these, as many back
/// to integers as the goal allows. With objective latency also the layers in float that integers do not make faster.
SearchResult search_quantization(const Session& session, ModelQuantizer& quantizer, QuantizationTrials& trials, const GoalSection& goal,
                                 const TrialHooks& hooks, const std::function<void(const SearchTrial& trial)>& progress);

/// Whether a metric meets the goal, and what it lost.
SearchTrial judge(const GoalSection& goal, const MetricValues& before, Trial trial);

}  // namespace galley
