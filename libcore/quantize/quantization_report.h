#pragma once
// The report of galley-quantize: tables of layers, totals and trials, and JSON.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libcore/base/table.h"
#include "libcore/quantize/layer_times.h"
#include "libcore/quantize/model_quantizer.h"
#include "libcore/quantize/quantization_search.h"
#include "libcore/runtime/machine.h"
#include "libcore/tasks/metrics.h"

namespace galley {

/// Everything that the report of galley-quantize contains.
struct QuantizationResult {
  QuantizedModel model;
  MetricValues real, quantized;                               // empty: not measured
  std::optional<SearchResult> search;                         // with quantize.goal
  double float_latency_s = 0;                                 // of one sample, with quantize.goal
  double float_tokens_per_s = 0, quantized_tokens_per_s = 0;  // of one text that is generated; 0: not measured
  std::vector<std::pair<int64_t, QuantizationTimes>> times;   // by batch size; the first is reported layer by layer
  int64_t calibrated_samples = 0;
  int64_t reorders = 0;  // of activations, in the compiled program
  int64_t bytes = 0, bytes_float = 0;
  std::string file;
};

/// One row per layer. `limits`: of this machine, for predicted times; unused if nothing was timed.
Table layer_table(const QuantizationResult& result, const MachineLimits& limits);
/// Size, metrics, times and inserted nodes of the whole model, float and quantized.
Table total_table(const QuantizationResult& result);
/// The trials of a search, the float model first. `metric`: the metric of the goal.
Table trial_table(const QuantizationResult& result, const std::string& metric);
/// {"layers","metrics","goal","trials","bytes",...}
nlohmann::ordered_json quantization_json(const QuantizationResult& result, const MachineLimits& limits);

/// A number, or "inf", "-inf", "nan".
nlohmann::ordered_json number_json(double value);
/// {"float":{name:value},"quantized":{...}}; null if nothing was measured.
nlohmann::ordered_json metrics_json(const MetricValues& real, const MetricValues& quantized);
/// A trial as JSON, and back. Throws nlohmann::json::exception if the object is not a trial.
nlohmann::ordered_json trial_json(const Trial& trial);
Trial trial_of_json(const nlohmann::ordered_json& json);

}  // namespace galley
