#pragma once
// The quantization plan in the metadata of a file of quantized weights (key `galley.quantization`, JSON).

#include <string>
#include <string_view>

#include "libcore/passes/quantization_plan.h"

namespace galley {

inline constexpr std::string_view kQuantizationKey = "galley.quantization";
/// {"float":{metric:value},"quantized":{...}}: metrics measured when the file was made.
inline constexpr std::string_view kMetricsKey = "galley.metrics";

/// {"version","method","layers":[{"name","type","scheme","float_reason","bits","group_size","reduced","sqnr_activation_db"}],
///  "values":{name:{"scale","zero_point","dtype","qmin","qmax"}}}. Scales are restored bit-exactly. Layers
/// of f8_e4m3 have "dtype":"f8_e4m3" and "input_scale" too, and the version is 2; else it is 1, which earlier versions of Galley read.
std::string plan_json(const QuantizationPlan& plan);
/// The inverse of plan_json. Throws Error (kInput), prefixed with `name`, if the text is not a plan or contains scales or integers that
/// kernels do not support.
QuantizationPlan parse_plan(const std::string& text, const std::string& name);

}  // namespace galley
