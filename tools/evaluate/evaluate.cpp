#include "tools/evaluate/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/data/sources.h"
#include "libcore/infer/compare.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/inference.h"
#include "libcore/runtime/parameter_store.h"
#include "tools/common/signals.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

constexpr size_t kChangedShown = 20;  // in the table; JSON has all

/// A number, or "inf", "-inf", "nan" (recipe.md, section 4).
nlohmann::ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

nlohmann::ordered_json metrics_json(const MetricValues& metrics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = number_json(value);
  return json;
}

/// Metrics without a value, such as those of small objects where there are none, are null.
nlohmann::ordered_json figures_json(const MetricValues& metrics) {
  nlohmann::ordered_json json = metrics_json(metrics);
  for (const auto& [name, value] : metrics)
    if (std::isnan(value) && name != "loss") json[name] = nullptr;
  return json;
}

nlohmann::ordered_json classes_json(const std::vector<ClassMetrics>& classes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ClassMetrics& kind : classes) {
    nlohmann::ordered_json item{{"index", kind.index}, {"label", kind.label}, {"count", kind.count}};
    item.update(figures_json(kind.values));
    list.push_back(std::move(item));
  }
  return list;
}

int metric_digits(const std::string& name) { return name == "loss" ? 6 : 3; }

nlohmann::ordered_json comparison_json(const Comparison& result, const std::string& split) {
  nlohmann::ordered_json json{
      {"metrics", metrics_json(result.first)}, {"against", metrics_json(result.second)}, {"samples", result.samples}, {"split", split}};
  json["outputs"] = {{"max_abs", number_json(result.outputs.max_abs())},
                     {"sqnr_db", number_json(result.outputs.sqnr_db())},
                     {"top1_agree", number_json(result.top1_agree)}};
  json["layers"] = nlohmann::ordered_json::array();
  for (const LayerDistance& layer : result.layers) {
    json["layers"].push_back({{"module", layer.module},
                              {"type", layer.type},
                              {"max_abs", number_json(layer.distance.max_abs())},
                              {"sqnr_db", number_json(layer.distance.sqnr_db())}});
  }
  json["layer_samples"] = result.layer_samples;
  json["changed"] = nlohmann::ordered_json::array();
  for (const ChangedSample& sample : result.changed) {
    json["changed"].push_back({{"sample", sample.sample}, {"label", sample.label}, {"weights", sample.first}, {"against", sample.second}});
  }
  return json;
}

Table comparison_table(const Comparison& result) {
  Table table{{"what", "weights", "against", "difference"}, {}};
  for (size_t i = 0; i < result.first.size(); ++i) {
    const auto& [name, value] = result.first[i];
    const double there = result.second[i].second;
    table.rows.push_back(
        {name, fixed(value, metric_digits(name)), fixed(there, metric_digits(name)), fixed(there - value, metric_digits(name))});
  }
  if (!std::isnan(result.top1_agree)) table.rows.push_back({"top1 agree %", "", "", fixed(result.top1_agree, 3)});
  table.rows.push_back({"outputs max abs", "", "", human_number(result.outputs.max_abs())});
  table.rows.push_back({"outputs SQNR dB", "", "", fixed(result.outputs.sqnr_db(), 1)});
  for (const LayerDistance& layer : result.layers)
    table.rows.push_back({layer.module + " SQNR dB", "", "", fixed(layer.distance.sqnr_db(), 1)});
  for (size_t i = 0; i < std::min(kChangedShown, result.changed.size()); ++i) {
    const ChangedSample& sample = result.changed[i];
    table.rows.push_back({sample.sample, cat(sample.first), cat(sample.second), sample.label < 0 ? "" : cat("label ", sample.label)});
  }
  return table;
}

}  // namespace

void EvaluateTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_option("--against", against_, "evaluate these weights too and compare the outputs: a file, a checkpoint or a RUN folder")
      .type_name("WEIGHTS")
      .group("Input")
      .take_last();
}

int EvaluateTool::print_fits(const Recipe& recipe) const {
  if (common.format == Format::kJson) {
    const auto json =
        nlohmann::ordered_json{{"fits", true}, {"provenance", provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)))}};
    print(json.dump() + "\n");
  } else {
    print("the recipe, its data and its weights are consistent\n");
  }
  return kExitDone;
}

/// Objects of images get the labels that the weights have for their names. Sources are not open yet.
static void use_learned_names(Recipe& recipe, const Session& session) {
  std::vector<Split*> splits{&recipe.data.train};
  for (std::optional<Split>* split : {&recipe.data.val, &recipe.data.test})
    if (*split) splits.push_back(&**split);
  for (Split* split : splits) {
    auto* objects = dynamic_cast<ObjectOptions*>(split->source.params.get());
    if (objects != nullptr) objects->learned = session.prediction_categories();
  }
}

/// Weights say what their classes are called: metrics of data whose classes have other names, or another order, mean nothing.
void EvaluateTool::warn_of_other_categories(Session& session, const std::string& split) const {
  const std::vector<std::string> learned = session.prediction_categories(), given = session.categories();
  if (learned.empty() || given.empty() || learned.size() != given.size()) return;
  const auto [mine, theirs] = std::mismatch(learned.begin(), learned.end(), given.begin());
  if (mine == learned.end()) return;
  log(LogLevel::kWarning, cat("class ", mine - learned.begin(), " of the weights is '", *mine, "', but '", *theirs, "' in data.", split,
                              ": the metrics compare classes by their numbers"));
}

int EvaluateTool::compare(Session& session, int64_t batch) {
  Recipe other = session.recipe();
  auto weights = std::make_unique<WeightSource>();
  weights->from = against_;
  other.weights.load.items.clear();
  other.weights.load.items.push_back(std::move(weights));
  resolve_weights(other, weight_registry());
  make_paths_absolute(other);
  Session second(other);
  CompareOptions options{.split = session.recipe().evaluate.data, .batch = batch};
  if (dry_run_) {
    Engine engine(second.backend());
    const Evaluator evaluator(second, engine, loaded_plan(other), options.split, batch);
    engine.declare(evaluator.program());
    second.initialize(evaluator.parameters(), engine.store(), evaluator.sample_shape());
    return print_fits(session.recipe());
  }
  const Comparison result = compare_weights_of(session, second, options);
  nlohmann::ordered_json json = comparison_json(result, options.split);
  json["provenance"] = provenance_json(provenance(session.recipe(), dump_recipe(session.recipe(), DumpKind::kFull)));
  const Table table = comparison_table(result);
  save(json.dump() + "\n", table);
  if (result.changed.size() > kChangedShown)
    log(LogLevel::kInfo, cat(result.changed.size() - kChangedShown, " more samples changed; --format json lists all"));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

int EvaluateTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  make_paths_absolute(recipe);
  require_weights(loaded);
  const std::string split = recipe.evaluate.data;
  if (recipe.data.find(split) == nullptr) {
    throw Error(ErrorCode::kRecipe, cat("the recipe has no data.", split, " to evaluate on"))
        .key("data." + split)
        .suggest("write it, or evaluate on the training data: evaluate.data=train");
  }
  split_of(recipe, split);
  const Split& described = *recipe.data.find(split);
  const int64_t micro = recipe.train.batch ? recipe.train.batch->micro.value_or(recipe.train.batch->global) : 32;
  Session session(recipe);
  use_learned_names(recipe, session);
  if (!against_.empty() && recipe.evaluate.cache)
    throw Error(ErrorCode::kRecipe, "--against compares two sets of weights, both without a cache")
        .key("evaluate.cache")
        .suggest("leave the key out, or evaluate each set of weights alone");
  if (!against_.empty() && !dry_run_) return compare(session, described.batch.value_or(micro));
  Engine engine(session.backend());
  Evaluator evaluator(session, engine, loaded_plan(recipe), split, described.batch.value_or(micro), 0, nullptr, recipe.evaluate.cache);
  engine.declare(evaluator.program());
  session.initialize(evaluator.parameters(), engine.store(), evaluator.sample_shape());
  if (!against_.empty()) return compare(session, described.batch.value_or(micro));
  warn_of_other_categories(session, split);
  if (dry_run_) return print_fits(recipe);
  evaluator.bind();
  const auto began = std::chrono::steady_clock::now();
  const std::optional<MetricValues> found = evaluator.run([] { return stop_signal() != 0; });
  if (!found) return 128 + stop_signal();
  const MetricValues& metrics = *found;
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::string text = dump_recipe(recipe, DumpKind::kFull);
  nlohmann::ordered_json json;
  json["metrics"] = figures_json(metrics);
  if (!evaluator.classes().empty()) json["classes"] = classes_json(evaluator.classes());
  json["samples"] = evaluator.samples();
  json["skipped"] = evaluator.skipped();
  json["irregular"] = evaluator.irregular();
  json["split"] = split;
  json["wall_s"] = wall_s;
  json["provenance"] = provenance_json(provenance(recipe, text));
  Table table{{"metric", "value"}, {}};
  for (const auto& [name, value] : metrics) {
    table.rows.push_back({name, fixed(value, metric_digits(name))});
  }
  save(json.dump() + "\n", table);
  if (evaluator.skipped() > 0)
    log(LogLevel::kWarning, cat(human_count(evaluator.skipped()), " damaged samples were skipped; their neighbors stand in for them"));
  if (evaluator.irregular() > 0)
    log(LogLevel::kWarning, cat(human_count(evaluator.irregular()), " samples of irregular files were read in full"));
  log(LogLevel::kInfo, cat(split, ": ", counted(evaluator.samples(), "sample"), " in ", human_seconds(wall_s)));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
  } else {
    print(table);
  }
  const auto bad = std::find_if(metrics.begin(), metrics.end(), [](const auto& metric) {
    return std::isinf(metric.second) || (std::isnan(metric.second) && metric.first == "loss");
  });
  if (bad != metrics.end())
    log(LogLevel::kWarning, cat(bad->first, " is ", bad->second, "; galley-weights verify looks for damage in the weights"));
  return kExitDone;
}

}  // namespace galley::tools
