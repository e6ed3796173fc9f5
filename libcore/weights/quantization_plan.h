#pragma once
// The plan of quantization in the metadata of a file of quantized weights: key `galley.quantization`, JSON.

#include <string>
#include <string_view>

#include "libcore/passes/quantization_plan.h"

namespace galley {

inline constexpr std::string_view kQuantizationKey = "galley.quantization";
/// {"float":{metric:value},"quantized":{...}}: what was measured when the file was made.
inline constexpr std::string_view kMetricsKey = "galley.metrics";

/// {"version","method","layers":[{"name","type","scheme","float_reason","bits","group_size","reduced","sqnr_activation_db"}],
///  "values":{name:{"scale","zero_point","dtype","qmin","qmax"}}}. Scales come back with the same bits.
std::string plan_json(const QuantizationPlan& plan);
/// Throws Error (kInput), beginning with `name`, where the text is no plan or holds scales and integers that no kernel could take.
QuantizationPlan parse_plan(const std::string& text, const std::string& name);

}  // namespace galley
