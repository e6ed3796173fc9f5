#include "tools/quantize/trials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/recipe/recipe.h"
#include "tools/common/provenance.h"
#include "tools/common/signals.h"
#include "tools/quantize/metrics_text.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

double number_of_json(const Json& json) {
  if (json.is_number()) return json.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return json == "inf" ? kInfinity : json == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

Json observer_json(const std::optional<ObserverType>& type) { return type ? Json(observer_name(*type)) : Json(); }

std::optional<ObserverType> observer_of_json(const Json& json) {
  const auto found = json.is_string() ? std::find(kObserverNames.begin(), kObserverNames.end(), json.get<std::string>()) : kObserverNames.end();
  if (found == kObserverNames.end()) return std::nullopt;
  return static_cast<ObserverType>(found - kObserverNames.begin());
}

}  // namespace

Json trial_json(const Trial& trial) {
  Json json{{"setting", trial.setting.text()}, {"float_layers", trial.setting.float_layers}, {"activations", observer_json(trial.setting.activations)}, {"weights", observer_json(trial.setting.weights)}};
  json["sqnr_db"] = number_json(trial.sqnr_db);
  json["metrics"] = Json::object();
  for (const auto& [name, value] : trial.metrics) json["metrics"][name] = number_json(value);
  json["latency_ms"] = 1e3 * trial.latency_s;
  json["bytes"] = trial.bytes;
  json["quantized_layers"] = trial.quantized_layers;
  return json;
}

Trial trial_of_json(const Json& json) {
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

TrialHooks journaled(Journal& journal) {
  const auto key = [](const TrialSetting& setting, const TrialQuestions& asked) {
    return cat(setting.key(), "|", asked.sqnr ? "sqnr " : "", asked.metrics ? "metrics " : "", asked.latency ? "latency" : "");
  };
  TrialHooks hooks;
  hooks.find = [&journal, key](const TrialSetting& setting, const TrialQuestions& questions) -> std::optional<Trial> {
    const Json* known = journal.find(key(setting, questions));
    if (known == nullptr) return std::nullopt;
    try {
      return trial_of_json(*known);
    } catch (const nlohmann::json::exception&) {
      return std::nullopt;  // a damaged line: it is tried again
    }
  };
  hooks.add = [&journal, key](const Trial& trial) { journal.add(key(trial.setting, trial.asked), trial_json(trial)); };
  hooks.stop = [] { return stop_signal() != 0; };
  return hooks;
}

std::string trials_command(const Recipe& recipe, ModelQuantizer& quantizer, const std::string& kind) {
  Recipe same = recipe;
  same.quantize.goal.reset();
  std::string text = cat(kind, "\n", dump_recipe(same, DumpKind::kFull));
  for (const auto& [name, digest] : parameter_digests(quantizer.parameters(), quantizer.store())) text += cat("\n", name, " ", digest);
  return sha256_hex(text);
}

}  // namespace galley::tools
