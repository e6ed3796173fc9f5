#include "libcore/quantize/quantization_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

std::string decibels(double value) { return std::isnan(value) ? "-" : std::isinf(value) ? "inf" : fixed(value, 1); }
std::string kibibytes(int64_t bytes) { return fixed(static_cast<double>(bytes) / 1024, 1); }
std::string milliseconds(double seconds) { return fixed(1e3 * seconds, 3); }

/// Integer multiply-adds per f32 multiply-add. With VNNI or AMX: as measured. Else vpmaddubsw, vpmaddwd and vpaddd together compute 64
/// multiply-adds, three f32 instructions 48; vpmaddwd and vpaddd on widened values compute as many as two f32 instructions.
double integer_rate(const MachineLimits& limits, bool reduced) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni")) return limits.int8_per_s / limits.flops_per_s;
#endif
  return reduced ? 4.0 / 3 : 1;
}

/// The time at the machine's limits: that of arithmetic or of memory, whichever is longer.
double predicted_s(const LayerTime& layer, const MachineLimits& limits, double rate) {
  return std::max(layer.flops / (limits.flops_per_s * rate), layer.bytes / limits.bytes_per_s);
}

const LayerTime& time_of(const ProgramTimes& times, const std::string& layer) {
  static const LayerTime kNone;
  const auto found = times.layers.find(layer);
  return found == times.layers.end() ? kNone : found->second;
}

/// Measured times of a layer for the first batch size, and the times at the machine's limits.
struct MeasuredLayer {
  const LayerTime &before, &after;
  double float_s = 0, integer_s = 0;
};

MeasuredLayer measured(const QuantizationResult& result, const LayerPlan& plan, const MachineLimits& limits) {
  const QuantizationTimes& times = result.times.front().second;
  const LayerTime &before = time_of(times.real, plan.name), &after = time_of(times.quantized, plan.name);
  const bool integers = plan.float_reason.empty() && !plan.f8 && plan.scheme.find(',') != std::string::npos;
  return {before, after, predicted_s(before, limits, 1), predicted_s(after, limits, integers ? integer_rate(limits, plan.reduced) : 1)};
}

Json layer_json(const QuantizationResult& result, const LayerResult& layer, const MachineLimits& limits) {
  const LayerPlan& plan = layer.plan;
  const bool real = !plan.float_reason.empty();
  Json json{{"name", plan.name}, {"type", plan.type}, {"scheme", plan.scheme}};
  json["sqnr_weight_db"] = real ? Json() : number_json(layer.sqnr_weight_db);
  json["sqnr_activation_db"] = std::isnan(plan.sqnr_activation_db) ? Json() : number_json(plan.sqnr_activation_db);
  json["float_reason"] = real ? Json(plan.float_reason) : Json();
  json["mse_weight"] = real ? Json() : number_json(layer.mse_weight);
  json["bytes"] = layer.bytes;
  json["bytes_float"] = layer.bytes_float;
  if (result.times.empty()) return json;
  const MeasuredLayer times = measured(result, plan, limits);
  json["float_ms"] = 1e3 * times.before.seconds;
  json["quantized_ms"] = 1e3 * times.after.seconds;
  json["predicted_float_ms"] = 1e3 * times.float_s;
  json["predicted_quantized_ms"] = 1e3 * times.integer_s;
  return json;
}

double number_of_json(const Json& json) {
  if (json.is_number()) return json.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return json == "inf" ? kInfinity : json == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

Json observer_json(const std::optional<ObserverType>& type) { return type ? Json(observer_name(*type)) : Json(); }

std::optional<ObserverType> observer_of_json(const Json& json) {
  const auto found =
      json.is_string() ? std::find(kObserverNames.begin(), kObserverNames.end(), json.get<std::string>()) : kObserverNames.end();
  if (found == kObserverNames.end()) return std::nullopt;
  return static_cast<ObserverType>(found - kObserverNames.begin());
}

Json search_json(const SearchResult& search) {
  Json json = Json::array();
  for (size_t i = 0; i < search.trials.size(); ++i) {
    const SearchTrial& t = search.trials[i];
    Json row = trial_json(t.trial);
    row.erase("sqnr_db");
    row["drop"] = number_json(t.drop);
    row["met"] = t.met;
    row["pareto"] = t.pareto;
    row["written"] = i == search.best;
    json.push_back(std::move(row));
  }
  return json;
}

}  // namespace

nlohmann::ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

nlohmann::ordered_json metrics_json(const MetricValues& real, const MetricValues& quantized) {
  if (real.empty()) return nullptr;
  Json json{{"float", Json::object()}, {"quantized", Json::object()}};
  for (const auto& [name, value] : real) json["float"][name] = number_json(value);
  for (const auto& [name, value] : quantized) json["quantized"][name] = number_json(value);
  return json;
}

nlohmann::ordered_json trial_json(const Trial& trial) {
  Json json{{"setting", trial.setting.text()},
            {"float_layers", trial.setting.float_layers},
            {"activations", observer_json(trial.setting.activations)},
            {"weights", observer_json(trial.setting.weights)}};
  json["sqnr_db"] = number_json(trial.sqnr_db);
  json["metrics"] = Json::object();
  for (const auto& [name, value] : trial.metrics) json["metrics"][name] = number_json(value);
  json["latency_ms"] = 1e3 * trial.latency_s;
  json["bytes"] = trial.bytes;
  json["quantized_layers"] = trial.quantized_layers;
  return json;
}

Trial trial_of_json(const nlohmann::ordered_json& json) {
  Trial trial;
  trial.setting.float_layers = json.at("float_layers").get<std::vector<std::string>>();
  trial.setting.activations = observer_of_json(json.at("activations"));
  trial.setting.weights = observer_of_json(json.at("weights"));
  trial.sqnr_db = number_of_json(json.at("sqnr_db"));
  for (const auto& [name, value] : json.at("metrics").items()) trial.metrics.emplace_back(name, number_of_json(value));
  trial.latency_s = json.at("latency_ms").get<double>() / 1e3;
  trial.bytes = json.at("bytes");
  trial.quantized_layers = json.at("quantized_layers");
  return trial;
}

Table layer_table(const QuantizationResult& result, const MachineLimits& limits) {
  Table layers{{"layer", "type", "scheme", "weight dB", "result dB", "weight MSE", "float KiB", "KiB"}, {}};
  if (!result.times.empty()) {
    for (const char* heading : {"float ms", "predicted", "integer ms", "predicted", "gain"}) layers.headings.emplace_back(heading);
  }
  layers.headings.emplace_back("in float because");
  for (const LayerResult& layer : result.model.layers) {
    const LayerPlan& plan = layer.plan;
    const bool real = !plan.float_reason.empty();
    std::vector<std::string> row{plan.name,
                                 plan.type,
                                 plan.scheme,
                                 real ? "-" : decibels(layer.sqnr_weight_db),
                                 decibels(plan.sqnr_activation_db),
                                 real ? "-" : human_number(layer.mse_weight),
                                 kibibytes(layer.bytes_float),
                                 kibibytes(layer.bytes)};
    if (!result.times.empty()) {
      const auto& [before, after, float_s, integer_s] = measured(result, plan, limits);
      if (before.seconds > 0 && after.seconds > 0) {
        row.insert(row.end(), {milliseconds(before.seconds), milliseconds(float_s), milliseconds(after.seconds), milliseconds(integer_s),
                               fixed(before.seconds / after.seconds, 2)});
      } else {
        row.insert(row.end(), 5, "-");  // one of several operators of a layer
      }
    }
    row.push_back(plan.float_reason);
    layers.rows.push_back(std::move(row));
  }
  return layers;
}

Table total_table(const QuantizationResult& result) {
  const ConvertReport& nodes = result.model.conversion;
  Table totals{{"total", "float", "quantized", "difference", "ratio"}, {}};
  // The tensors, as in the table of trials: a file has a header too.
  const auto bytes = static_cast<double>(result.model.bytes()), bytes_float = static_cast<double>(result.bytes_float);
  totals.rows.push_back({"MiB", fixed(bytes_float / (1 << 20), 3), fixed(bytes / (1 << 20), 3), fixed((bytes - bytes_float) / (1 << 20), 3),
                         cat(fixed(100 * bytes / std::max(1.0, bytes_float), 1), "%")});
  for (size_t i = 0; i < result.real.size(); ++i) {
    const auto& [metric, value] = result.real[i];
    const double after = find_metric(result.quantized, metric);
    const int digits = metric == "loss" ? 6 : 3;
    totals.rows.push_back({metric, fixed(value, digits), fixed(after, digits), fixed(after - value, digits), ""});
  }
  if (result.quantized_tokens_per_s > 0) {
    const double before = result.float_tokens_per_s, after = result.quantized_tokens_per_s;
    totals.rows.push_back(
        {"tokens/s", human_number(before), human_number(after), human_number(after - before), cat(fixed(after / before, 2), "x")});
  }
  for (const auto& [batch, times] : result.times) {
    const double before = times.real.all.seconds, after = times.quantized.all.seconds;
    totals.rows.push_back({cat("ms, batch ", batch), milliseconds(before), milliseconds(after), "", cat(fixed(before / after, 2), "x")});
    const auto rate = [&, n = static_cast<double>(batch)](double seconds) { return human_number(n / seconds); };
    totals.rows.push_back({cat("samples/s, batch ", batch), rate(before), rate(after), "", ""});
  }
  totals.rows.push_back(
      {"quantize nodes", "", cat(nodes.quantize_nodes), nodes.inner_quantize > 0 ? cat(nodes.inner_quantize, " inside") : "", ""});
  totals.rows.push_back(
      {"dequantize nodes", "", cat(nodes.dequantize_nodes), nodes.inner_dequantize > 0 ? cat(nodes.inner_dequantize, " inside") : "", ""});
  totals.rows.push_back({"reorders of activations", "", cat(result.reorders), "", ""});
  return totals;
}

Table trial_table(const QuantizationResult& result, const std::string& metric) {
  Table table{{"trial", metric, "loses", "ms", "MiB", "met", "pareto"}, {}};
  const SearchResult& search = *result.search;
  table.rows.push_back({"float", fixed(find_metric(result.real, metric), 3), "", fixed(1e3 * result.float_latency_s, 3),
                        fixed(static_cast<double>(result.bytes_float) / (1 << 20), 3), "", ""});
  for (size_t i = 0; i < search.trials.size(); ++i) {
    const SearchTrial& t = search.trials[i];
    table.rows.push_back({t.trial.setting.text() + (i == search.best ? " (written)" : ""), fixed(find_metric(t.trial.metrics, metric), 3),
                          fixed(t.drop, 3), fixed(1e3 * t.trial.latency_s, 3), fixed(static_cast<double>(t.trial.bytes) / (1 << 20), 3),
                          t.met ? "yes" : "no", t.pareto ? "*" : ""});
  }
  return table;
}

nlohmann::ordered_json quantization_json(const QuantizationResult& result, const MachineLimits& limits) {
  const ConvertReport& nodes = result.model.conversion;
  Json rows = Json::array();
  for (const LayerResult& layer : result.model.layers) rows.push_back(layer_json(result, layer, limits));
  Json json{{"layers", std::move(rows)}, {"metrics", metrics_json(result.real, result.quantized)}};
  const SearchTrial* reached = result.search ? &result.search->trials[result.search->best] : nullptr;
  json["goal"] = reached != nullptr ? Json{{"met", reached->met}, {"drop", number_json(reached->drop)}} : Json();
  json["trials"] = reached != nullptr ? search_json(*result.search) : Json();
  json["tokens_per_s"] =
      result.quantized_tokens_per_s > 0 ? Json{{"float", result.float_tokens_per_s}, {"quantized", result.quantized_tokens_per_s}} : Json();
  json["bytes"] = result.bytes;
  json["bytes_float"] = result.bytes_float;
  json["file"] = result.file;
  json["method"] = method_name(result.model.plan->method);
  json["quantized_layers"] = result.model.plan->quantized_layers();
  json["calibration_samples"] = result.calibrated_samples;
  json["nodes"] = {
      {"quantize", nodes.quantize_nodes},           {"dequantize", nodes.dequantize_nodes}, {"inner_quantize", nodes.inner_quantize},
      {"inner_dequantize", nodes.inner_dequantize}, {"reorder", result.reorders},           {"why", nodes.nodes},
      {"float_operators", nodes.float_operators}};
  json["times"] = Json::array();
  for (const auto& [batch, times] : result.times) {
    json["times"].push_back({{"batch", batch},
                             {"rounds", times.rounds},
                             {"float_ms", 1e3 * times.real.all.seconds},
                             {"quantized_ms", 1e3 * times.quantized.all.seconds}});
  }
  return json;
}

}  // namespace galley
