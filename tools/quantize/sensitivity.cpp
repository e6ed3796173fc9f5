// galley-quantize --sensitivity: what each layer costs, alone and left out.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/recipe/recipe.h"
#include "libcore/recipe/yaml_tree.h"
#include "tools/common/signals.h"
#include "tools/quantize/quantize.h"
#include "tools/quantize/trials.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// A fragment for --with: these layers in float, before the overrides that the recipe has already.
std::string fragment(const Recipe& recipe, const std::vector<std::string>& layers, const std::string& about) {
  YamlNode item = YamlNode::map_of();
  item.at("match") = YamlNode::list_of();
  for (const std::string& layer : layers) item.at("match").items.push_back(YamlNode::scalar_of(layer));
  item.at("keep") = YamlNode::scalar_of("float");
  YamlNode list = YamlNode::list_of();
  list.items.push_back(std::move(item));
  const auto source = std::make_shared<TextSource>();
  source->name = "recipe";
  source->text = dump_recipe(recipe, DumpKind::kMin);
  const YamlNode dumped = parse_yaml(source);
  const YamlNode* section = dumped.find("quantize");
  const YamlNode* present = section == nullptr ? nullptr : section->find("overrides");
  if (present != nullptr) list.items.insert(list.items.end(), present->items.begin(), present->items.end());
  YamlNode tree = YamlNode::map_of();
  tree.at("quantize").at("overrides") = std::move(list);
  return about + emit_yaml(tree, {.escape_dollars = false});
}

}  // namespace

int QuantizeTool::sensitivity(Session& session, ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration) {
  const Recipe& recipe = session.recipe();
  QuantizationTrials trials(session, quantizer, config, calibration);
  if (trials.layers().empty()) throw Error(ErrorCode::kRecipe, "the recipe leaves every layer in float").key("quantize.overrides");
  std::string metric;
  if (evaluate_) {
    const MetricValues& values = trials.float_metrics();
    metric = recipe.quantize.goal ? recipe.quantize.goal->metric : values.front().first;
    if (!recipe.quantize.goal && find_metric(values, "top1") == find_metric(values, "top1")) metric = "top1";
  }
  Journal journal(journal_path(), trials_command(recipe, quantizer, "sensitivity " + metric));
  const TrialHooks hooks = journaled(journal);
  if (journal.size() > 0)
    log(LogLevel::kInfo, cat(counted(static_cast<int64_t>(journal.size()), "trial"), journal.size() == 1 ? " is in " : " are in ",
                             journal_path(), " already"));
  const Trial whole = known_or_made(trials, hooks, {}, {.metrics = !metric.empty()});
  Progress progress(common.progress);
  const std::vector<LayerSensitivity> layers = measure_sensitivity(trials, metric, hooks, [&](int64_t done, int64_t of) {
    progress.update(static_cast<double>(done) / static_cast<double>(of), cat("sensitivity ", done, "/", of),
                    Json{{"progress", "sensitivity"}, {"done", done}, {"of", of}}.dump());
  });
  progress.clear();
  const bool stopped = layers.size() < trials.layers().size();

  Table table{{"layer", "alone dB", "all but it dB"}, {}};
  if (!metric.empty()) table.headings.insert(table.headings.end(), {"alone loses", "left out gains"});
  const double sign = metric.empty() || larger_is_better(metric) ? 1 : -1;
  const double real = metric.empty() ? 0 : find_metric(trials.float_metrics(), metric),
               quantized = metric.empty() ? 0 : find_metric(whole.metrics, metric);
  Json rows = Json::array();
  for (const LayerSensitivity& layer : layers) {
    std::vector<std::string> row{layer.layer, fixed(layer.only.sqnr_db, 1), fixed(layer.without.sqnr_db, 1)};
    Json json{
        {"name", layer.layer}, {"only_sqnr_db", number_json(layer.only.sqnr_db)}, {"without_sqnr_db", number_json(layer.without.sqnr_db)}};
    if (!metric.empty()) {
      const double drop = sign * (real - find_metric(layer.only.metrics, metric)),
                   gain = sign * (find_metric(layer.without.metrics, metric) - quantized);
      row.insert(row.end(), {fixed(drop, 3), fixed(gain, 3)});
      json["only_drop"] = number_json(drop);
      json["without_gain"] = number_json(gain);
    }
    table.rows.push_back(std::move(row));
    rows.push_back(std::move(json));
  }
  Json json{{"sensitivity", std::move(rows)}, {"metric", metric.empty() ? Json() : Json(metric)}, {"sqnr_db", number_json(whole.sqnr_db)}};
  json["metrics"] = metric.empty() ? Json() : metrics_json(trials.float_metrics(), whole.metrics);
  json["complete"] = !stopped;
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));

  if (!output_.empty() && !stopped) {
    std::vector<std::string> kept;
    for (const LayerSensitivity& layer : layers) {
      if (static_cast<int64_t>(kept.size()) < keep_float_) kept.push_back(layer.layer);
    }
    const std::string by = metric.empty() ? "the SQNR of the outputs" : metric;
    write_file(output_,
               fragment(recipe, kept, cat("# Of all layers these cost most when they alone are quantized (by ", by, "); for --with.\n")));
    log(LogLevel::kInfo, cat("wrote ", output_, "; galley-quantize ", recipe_, " --with ", output_, " uses it"));
  }
  save(json.dump() + "\n", table);
  print(common.format == Format::kJson ? json.dump() + "\n" : render(table, common.format));
  log(LogLevel::kInfo, cat("all of them quantized: ", fixed(whole.sqnr_db, 1), " dB",
                           metric.empty() ? "" : cat(", ", metric, " ", fixed(quantized, 3), " of ", fixed(real, 3))));
  if (!stopped) return kExitDone;
  log(LogLevel::kWarning, journal_path().empty() ? "stopped; with --journal FILE or -o the same command would continue"
                                                 : "stopped; the same command continues with " + journal_path());
  return journal_path().empty() ? 128 + stop_signal() : kExitResumable;
}

}  // namespace galley::tools
