#pragma once
// Sensitivity of layers to quantization, and the search for a quantized model that meets quantize.goal.

#include <functional>
#include <string>
#include <vector>

#include "libcore/quantize/quantization_trials.h"
#include "libcore/recipe/quantize_section.h"

namespace galley {

/// Callbacks of trials.
struct TrialHooks {
  std::function<std::optional<Trial>(const TrialSetting& setting, const TrialQuestions& questions)> find =
      [](const TrialSetting&, const TrialQuestions&) { return std::nullopt; };  // looks it up in a journal
  std::function<void(const Trial& trial)> add = [](const Trial&) {};            // called for a new trial
  std::function<bool()> stop = [] { return false; };                            // true: make no further trial
};

/// The trial from the journal, or a new one, which is added to it.
Trial known_or_made(QuantizationTrials& trials, const TrialHooks& hooks, const TrialSetting& setting, const TrialQuestions& questions);

/// The effect of quantizing one layer.
struct LayerSensitivity {
  std::string layer;
  Trial only;     // this layer quantized, all others in float
  Trial without;  // all but this layer quantized
};

/// Tries every layer alone and every layer left out. The most sensitive layer comes first: by the loss of `metric` with only that layer
/// quantized, or by the SQNR of the outputs if `metric` is "". Calls `progress` with the number of finished trials and of all. Ends early,
/// with fewer layers, if hooks.stop returns true.
std::vector<LayerSensitivity> measure_sensitivity(QuantizationTrials& trials, const std::string& metric, const TrialHooks& hooks,
                                                  const std::function<void(int64_t done, int64_t of)>& progress);

/// A trial compared with the goal.
struct SearchTrial {
  Trial trial;
  double drop = 0;  // of the goal's metric, in its unit; positive: worse
  bool met = false;
  bool pareto = false;  // no other trial is at least as good in drop, time and bytes and better in one of them
};

/// The trials of a search.
struct SearchResult {
  std::vector<SearchTrial> trials;  // in the order made; never empty
  size_t best = 0;  // index of the trial that meets the goal with the best objective; if none does, the one with the smallest drop
  bool out_of_time = false, stopped = false;
};

/// Tries, until the goal is met at the lowest cost or time_budget is over (a running trial is finished): the config as it is; other
/// observers; then layers in float, the most sensitive first, twice as many each time until the goal is met; then as many of these in
/// integers again as the goal allows. With objective latency, also leaves layers in float that are not faster in integers.
SearchResult search_quantization(const Session& session, ModelQuantizer& quantizer, QuantizationTrials& trials, const GoalSection& goal,
                                 const TrialHooks& hooks, const std::function<void(const SearchTrial& trial)>& progress);

/// Computes the drop of the metric and whether the trial meets the goal.
SearchTrial judge(const GoalSection& goal, const MetricValues& before, Trial trial);

}  // namespace galley
