#pragma once
// Metrics before and after as JSON: in the tool's result and in the file's `galley.metrics`.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "libcore/tasks/metrics.h"

namespace galley::tools {

/// A number, or "inf", "-inf", "nan" (the tools' contract).
nlohmann::ordered_json number_json(double value);
/// {"float":{name:value},"quantized":{...}}; null where nothing was measured.
nlohmann::ordered_json metrics_json(const MetricValues& real, const MetricValues& quantized);
std::string metrics_text(const MetricValues& real, const MetricValues& quantized);

}  // namespace galley::tools
