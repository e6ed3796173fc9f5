#include "libcore/weights/quantization_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1, kVersionOfF8 = 2;
constexpr size_t kMostItems = 100'000;
constexpr int64_t kLargestGroup = int64_t{1} << 40;

const Json& member(const Json& object, const char* key) {
  const auto found = object.find(key);
  GALLEY_CHECK_INPUT(object.is_object() && found != object.end(), "there is no '", key, "'");
  return *found;
}
std::string text_of(const Json& object, const char* key) {
  const Json& value = member(object, key);
  GALLEY_CHECK_INPUT(value.is_string(), "'", key, "' is not a string");
  return value.get<std::string>();
}
int64_t integer_of(const Json& object, const char* key, int64_t min, int64_t max) {
  const Json& value = member(object, key);
  GALLEY_CHECK_INPUT(value.is_number_integer(), "'", key, "' is not an integer");
  const double size = value.get<double>();
  GALLEY_CHECK_INPUT(size >= static_cast<double>(min) && size <= static_cast<double>(max), "'", key, "' is ", size,
                     ", but must be between ", min, " and ", max);
  return value.get<int64_t>();
}
double number_of(const Json& object, const char* key) {
  const Json& value = member(object, key);
  GALLEY_CHECK_INPUT(value.is_number(), "'", key, "' is not a number");
  return value.get<double>();
}
bool flag_of(const Json& object, const char* key) {
  const Json& value = member(object, key);
  GALLEY_CHECK_INPUT(value.is_boolean(), "'", key, "' is not true or false");
  return value.get<bool>();
}

LayerPlan layer_of(const Json& json) {
  LayerPlan layer{.name = text_of(json, "name"), .type = text_of(json, "type"), .scheme = text_of(json, "scheme")};
  if (!member(json, "float_reason").is_null()) layer.float_reason = text_of(json, "float_reason");
  layer.bits = integer_of(json, "bits", 4, 8);
  GALLEY_CHECK_INPUT(layer.bits == 4 || layer.bits == 8, "'bits' is ", layer.bits, ", but must be 4 or 8");
  layer.group_size = integer_of(json, "group_size", 0, kLargestGroup);
  layer.reduced = flag_of(json, "reduced");
  if (json.contains("dtype")) {
    const std::string dtype = text_of(json, "dtype");
    GALLEY_CHECK_INPUT(dtype == dtype_name(DType::kF8E4M3) && layer.bits == 8 && layer.group_size == 0 && layer.float_reason.empty(),
                       "'dtype' of the layer '", layer.name, "' is ", dtype, ", which is not supported");
    layer.f8 = true;
    layer.input_scale = number_of(json, "input_scale");
    check_f8_scale(layer.input_scale);
  }
  const Json& sqnr = member(json, "sqnr_activation_db");
  layer.sqnr_activation_db = sqnr.is_null()                                         ? std::numeric_limits<double>::quiet_NaN()
                             : sqnr.is_string() && sqnr.get<std::string>() == "inf" ? std::numeric_limits<double>::infinity()
                                                                                    : number_of(json, "sqnr_activation_db");
  return layer;
}

QuantParams params_of(const Json& json) {
  QuantParams params;
  params.scale = number_of(json, "scale");
  const std::string dtype = text_of(json, "dtype");
  GALLEY_CHECK_INPUT(dtype == "u8" || dtype == "i8", "'dtype' is ", dtype, ", but must be u8 or i8");
  params.dtype = dtype == "u8" ? DType::kU8 : DType::kI8;
  params.zero_point = integer_of(json, "zero_point", -128, 255);
  params.qmin = integer_of(json, "qmin", -128, 255);
  params.qmax = integer_of(json, "qmax", -128, 255);
  check_quant_params(params);
  return params;
}

QuantizationPlan plan_of(const Json& json) {
  GALLEY_CHECK_INPUT(json.is_object(), "it is not a JSON object");
  const int64_t version = integer_of(json, "version", 1, 1'000'000);
  GALLEY_CHECK_INPUT(version == kVersion || version == kVersionOfF8, "it has version ", version,
                     ", but this version of Galley reads versions ", kVersion, " and ", kVersionOfF8);
  QuantizationPlan plan;
  const std::string method = text_of(json, "method");
  const auto found = std::find(kMethodNames.begin(), kMethodNames.end(), method);
  GALLEY_CHECK_INPUT(found != kMethodNames.end(), "'method' is '", method, "', which is not supported");
  plan.method = static_cast<QuantMethod>(found - kMethodNames.begin());
  const Json &layers = member(json, "layers"), &values = member(json, "values");
  GALLEY_CHECK_INPUT(layers.is_array() && layers.size() <= kMostItems, "'layers' is not a list");
  GALLEY_CHECK_INPUT(values.is_object() && values.size() <= kMostItems, "'values' is not an object");
  std::set<std::string> names;
  for (const Json& item : layers) {
    plan.layers.push_back(layer_of(item));
    GALLEY_CHECK_INPUT(names.insert(plan.layers.back().name).second, "the layer '", plan.layers.back().name, "' is listed twice");
  }
  for (const auto& [name, item] : values.items()) {
    try {
      plan.values[name] = params_of(item);
    } catch (Error& error) {
      throw Error(ErrorCode::kInput, cat("value '", name, "': ", error.message()));
    }
  }
  return plan;
}

}  // namespace

std::string plan_json(const QuantizationPlan& plan) {
  Json layers = Json::array(), values = Json::object();
  for (const LayerPlan& layer : plan.layers) {
    Json sqnr;
    if (std::isfinite(layer.sqnr_activation_db)) sqnr = layer.sqnr_activation_db;
    if (std::isinf(layer.sqnr_activation_db)) sqnr = "inf";
    layers.push_back({{"name", layer.name},
                      {"type", layer.type},
                      {"scheme", layer.scheme},
                      {"float_reason", layer.float_reason.empty() ? Json() : Json(layer.float_reason)},
                      {"bits", layer.bits},
                      {"group_size", layer.group_size},
                      {"reduced", layer.reduced},
                      {"sqnr_activation_db", std::move(sqnr)}});
    if (!layer.f8) continue;
    layers.back()["dtype"] = dtype_name(DType::kF8E4M3);
    layers.back()["input_scale"] = layer.input_scale;
  }
  for (const auto& [name, params] : plan.values) {
    values[name] = {{"scale", params.scale},
                    {"zero_point", params.zero_point},
                    {"dtype", params.dtype == DType::kU8 ? "u8" : "i8"},
                    {"qmin", params.qmin},
                    {"qmax", params.qmax}};
  }
  return Json{{"version", plan.has_f8() ? kVersionOfF8 : kVersion},
              {"method", method_name(plan.method)},
              {"layers", std::move(layers)},
              {"values", std::move(values)}}
      .dump();
}

QuantizationPlan parse_plan(const std::string& text, const std::string& name) {
  try {
    return plan_of(Json::parse(text, nullptr, /*allow_exceptions=*/false));
  } catch (Error& error) {
    throw Error(ErrorCode::kInput, cat(name, ": the quantization plan is not valid: ", error.message()))
        .suggest("the file is damaged: quantize again");
  }
}

}  // namespace galley
