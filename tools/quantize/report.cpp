// What galley-quantize says: a table a layer, totals, JSON.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/recipe/recipe.h"
#include "tools/common/machine_limits.h"
#include "tools/quantize/metrics_text.h"
#include "tools/quantize/quantize.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string decibels(double value) { return std::isnan(value) ? "-" : std::isinf(value) ? "inf" : fixed(value, 1); }
std::string kibibytes(int64_t bytes) { return fixed(static_cast<double>(bytes) / 1024, 1); }
std::string milliseconds(double seconds) { return fixed(1e3 * seconds, 3); }

/// Integer multiply-adds for each f32 multiply-add: with instructions for them (VNNI, AMX) as measured; else vpmaddubsw, vpmaddwd and vpaddd
/// together do 64 where three f32 instructions do 48, and vpmaddwd and vpaddd on widened values as many as two f32 instructions.
double integer_rate(const MachineLimits& limits, bool reduced) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni")) return limits.int8_per_s / limits.flops_per_s;
#endif
  return reduced ? 4.0 / 3 : 1;
}

/// Time at the machine's limits: of arithmetic or of memory, whichever is longer.
double predicted_s(const LayerTime& layer, const MachineLimits& limits, double rate) {
  return std::max(layer.flops / (limits.flops_per_s * rate), layer.bytes / limits.bytes_per_s);
}

const LayerTime& time_of(const ProgramTimes& times, const std::string& layer) {
  static const LayerTime kNone;
  const auto found = times.layers.find(layer);
  return found == times.layers.end() ? kNone : found->second;
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

std::string metrics_text(const MetricValues& real, const MetricValues& quantized) { return metrics_json(real, quantized).dump(); }

int QuantizeTool::report(const Recipe& recipe, const Result& result) const {
  const ConvertReport& nodes = result.model.conversion;
  const bool measured = !result.times.empty();
  const MachineLimits limits = measured ? machine_limits(compute_threads()) : MachineLimits();

  Table layers{{"layer", "type", "scheme", "weight dB", "result dB", "weight MSE", "float KiB", "KiB"}, {}};
  if (measured) {
    for (const char* heading : {"float ms", "predicted", "integer ms", "predicted", "gain"}) layers.headings.emplace_back(heading);
  }
  layers.headings.emplace_back("in float because");
  Json rows = Json::array();
  for (const LayerResult& layer : result.model.layers) {
    const LayerPlan& plan = layer.plan;
    const bool real = !plan.float_reason.empty();
    std::vector<std::string> row{plan.name, plan.type, plan.scheme, real ? "-" : decibels(layer.sqnr_weight_db), decibels(plan.sqnr_activation_db),
                                 real ? "-" : human_number(layer.mse_weight), kibibytes(layer.bytes_float), kibibytes(layer.bytes)};
    Json json{{"name", plan.name}, {"type", plan.type}, {"scheme", plan.scheme}};
    json["sqnr_weight_db"] = real ? Json() : number_json(layer.sqnr_weight_db);
    json["sqnr_activation_db"] = std::isnan(plan.sqnr_activation_db) ? Json() : number_json(plan.sqnr_activation_db);
    json["float_reason"] = real ? Json(plan.float_reason) : Json();
    json["mse_weight"] = real ? Json() : number_json(layer.mse_weight);
    json["bytes"] = layer.bytes;
    json["bytes_float"] = layer.bytes_float;
    if (measured) {
      const LayerTime &before = time_of(result.times.front().second.real, plan.name), &after = time_of(result.times.front().second.quantized, plan.name);
      const bool integers = !real && plan.scheme.find(',') != std::string::npos;
      const double float_s = predicted_s(before, limits, 1), integer_s = predicted_s(after, limits, integers ? integer_rate(limits, plan.reduced) : 1);
      if (before.seconds > 0 && after.seconds > 0) {
        row.insert(row.end(), {milliseconds(before.seconds), milliseconds(float_s), milliseconds(after.seconds), milliseconds(integer_s), fixed(before.seconds / after.seconds, 2)});
      } else {
        row.insert(row.end(), 5, "-");  // one of several operators that a layer became
      }
      json["float_ms"] = 1e3 * before.seconds;
      json["quantized_ms"] = 1e3 * after.seconds;
      json["predicted_float_ms"] = 1e3 * float_s;
      json["predicted_quantized_ms"] = 1e3 * integer_s;
    }
    row.push_back(plan.float_reason);
    layers.rows.push_back(std::move(row));
    rows.push_back(std::move(json));
  }

  Json json{{"layers", std::move(rows)}, {"metrics", metrics_json(result.real, result.quantized)}};
  const SearchTrial* reached = result.search ? &result.search->trials[result.search->best] : nullptr;
  json["goal"] = reached != nullptr ? Json{{"met", reached->met}, {"drop", number_json(reached->drop)}} : Json();
  json["trials"] = reached != nullptr ? search_json(*result.search) : Json();
  json["bytes"] = result.bytes;
  json["bytes_float"] = result.bytes_float;
  json["file"] = output_;
  json["method"] = method_name(result.model.plan->method);
  json["quantized_layers"] = result.model.plan->quantized_layers();
  json["calibration_samples"] = result.calibrated_samples;
  json["nodes"] = {{"quantize", nodes.quantize_nodes}, {"dequantize", nodes.dequantize_nodes}, {"inner_quantize", nodes.inner_quantize}, {"inner_dequantize", nodes.inner_dequantize},
                   {"reorder", result.reorders}, {"why", nodes.nodes}, {"float_operators", nodes.float_operators}};
  json["times"] = Json::array();
  for (const auto& [batch, times] : result.times) {
    json["times"].push_back({{"batch", batch}, {"rounds", times.rounds}, {"float_ms", 1e3 * times.real.all.seconds}, {"quantized_ms", 1e3 * times.quantized.all.seconds}});
  }
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));

  Table totals{{"total", "float", "quantized", "difference"}, {}};
  totals.rows.push_back({"MiB", fixed(static_cast<double>(result.bytes_float) / (1 << 20), 3), fixed(static_cast<double>(result.bytes) / (1 << 20), 3),
                         cat(fixed(100 * static_cast<double>(result.bytes) / static_cast<double>(std::max<int64_t>(1, result.bytes_float)), 1), "%")});
  for (size_t i = 0; i < result.real.size(); ++i) {
    const auto& [metric, value] = result.real[i];
    const double after = find_metric(result.quantized, metric);
    const int digits = metric == "loss" ? 6 : 3;
    totals.rows.push_back({metric, fixed(value, digits), fixed(after, digits), fixed(after - value, digits)});
  }
  for (const auto& [batch, times] : result.times) {
    const double before = times.real.all.seconds, after = times.quantized.all.seconds;
    totals.rows.push_back({cat("ms, batch ", batch), milliseconds(before), milliseconds(after), cat(fixed(before / after, 2), "x")});
    const auto rate = [&, n = static_cast<double>(batch)](double seconds) { return human_number(n / seconds); };
    totals.rows.push_back({cat("samples/s, batch ", batch), rate(before), rate(after), ""});
  }
  totals.rows.push_back({"quantize nodes", "", cat(nodes.quantize_nodes), nodes.inner_quantize > 0 ? cat(nodes.inner_quantize, " inside") : ""});
  totals.rows.push_back({"dequantize nodes", "", cat(nodes.dequantize_nodes), nodes.inner_dequantize > 0 ? cat(nodes.inner_dequantize, " inside") : ""});
  totals.rows.push_back({"reorders of activations", "", cat(result.reorders), ""});

  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? json.dump() + "\n" : render(layers, format));
  for (const auto& [op, count] : nodes.float_operators) log(LogLevel::kInfo, cat("in float: ", count, " x ", op));
  for (const std::string& line : nodes.nodes) log(LogLevel::kDebug, line);
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
  } else if (common.format == Format::kCsv) {
    print(layers);
  } else {
    const std::string trials = reached != nullptr ? "\n" + render(trial_table(result, recipe.quantize.goal->metric), common.format) : "";
    print(render(layers, common.format) + "\n" + render(totals, common.format) + trials);
  }
  if (result.search && result.search->stopped) {
    log(LogLevel::kWarning, cat("stopped: the best trial so far was written; the same command continues with ", journal_path()));
    return kExitResumable;
  }
  if (reached != nullptr && !reached->met) {
    log(LogLevel::kWarning, cat("the goal is missed: ", recipe.quantize.goal->metric, " is ", human_number(find_metric(result.quantized, recipe.quantize.goal->metric)), ", ", human_number(find_metric(result.real, recipe.quantize.goal->metric)),
                                 " in float; the best that was found was written"));
    return kExitGoalMissed;
  }
  return kExitDone;
}

}  // namespace galley::tools
