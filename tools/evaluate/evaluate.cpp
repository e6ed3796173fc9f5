#include "tools/evaluate/evaluate.h"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/train/evaluate.h"

namespace galley::tools {

int EvaluateTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  make_paths_absolute(recipe);
  require_weights(loaded);
  const std::string split = recipe.evaluate.data;
  split_of(recipe, split);
  const Split& described = *recipe.data.find(split);
  const int64_t micro = recipe.train.batch ? recipe.train.batch->micro.value_or(recipe.train.batch->global) : 32;
  Session session(recipe);
  Evaluator evaluator(session, split, described.batch.value_or(micro), {});
  ParameterStore store;
  store.declare(evaluator.program());
  session.initialize(evaluator.parameters(), store);
  evaluator.bind(store, std::make_shared<Arena>());
  if (dry_run_) {
    print("the recipe, its data and weights fit\n");
    return kExitDone;
  }
  const auto began = std::chrono::steady_clock::now();
  const MetricValues metrics = evaluator.run();
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::string text = dump_recipe(recipe, DumpKind::kFull);
  nlohmann::ordered_json json;
  json["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) json["metrics"][name] = value;
  json["samples"] = evaluator.samples();
  json["split"] = split;
  json["wall_s"] = wall_s;
  json["provenance"] = provenance_json(provenance(recipe, text));
  Table table{{"metric", "value"}, {}};
  for (const auto& [name, value] : metrics) {
    char cell[64];
    std::snprintf(cell, sizeof cell, name == "loss" ? "%.6f" : "%.3f", value);
    table.rows.push_back({name, cell});
  }
  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? json.dump() + "\n" : render(table, format));
  log(LogLevel::kInfo, cat(split, ": ", human_count(evaluator.samples()), " samples in ", human_seconds(wall_s)));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

}  // namespace galley::tools
