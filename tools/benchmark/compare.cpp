// galley-benchmark --compare BASE NEW.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/infer/components.h"
#include "libcore/train/benchmark_work.h"
#include "tools/benchmark/benchmark.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (char c : text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

/// Whether every word is an override.
bool are_overrides(const std::vector<std::string>& words) { return !words.empty() && std::all_of(words.begin(), words.end(), is_override); }

std::vector<BenchmarkRow> read_saved(const std::string& path) {
  const Json json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("rows"))
    throw Error(ErrorCode::kInput, cat(path, " is not a result of galley-benchmark")).suggest("create one with --save json:FILE");
  try {
    std::vector<BenchmarkRow> rows;
    for (const Json& row : json["rows"]) rows.push_back(row_of_json(row));
    return rows;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInput, cat(path, ": ", error.what()));
  }
}

std::string side_text(const std::string& recipe, const std::vector<std::string>& overrides) {
  std::string text = recipe;
  for (const std::string& word : overrides) text += " " + word;
  return text;
}

Json side_json(const std::string& recipe, const std::vector<std::string>& overrides) {
  return {{"recipe", recipe}, {"overrides", overrides}};
}

}  // namespace

BenchmarkTool::Side BenchmarkTool::side_of(const std::string& text, const std::vector<std::string>& recipes) {
  if (text.ends_with(".json") && file_exists(text)) return {.saved = read_saved(text)};
  const std::vector<std::string> words = words_of(text);
  if (!are_overrides(words)) return {.recipe = text};
  if (recipes.empty())
    throw Error(ErrorCode::kUsage, cat("'", text, "' are overrides, but no RECIPE was given"))
        .suggest("galley-benchmark RECIPE --compare 'key=a' 'key=b'");
  return {.recipe = recipes[0], .overrides = words};
}

int BenchmarkTool::compare(const std::vector<std::string>& recipes) {
  if (recipes.size() > 1)
    throw Error(ErrorCode::kUsage, cat("--compare takes at most one RECIPE in addition to BASE and NEW, got also '", recipes[1], "'"));
  const Side base = side_of(compare_[0], recipes), changed = side_of(compare_[1], recipes);
  const MachineWatch watch;
  if (base.saved.empty() && changed.saved.empty()) return compare_recipes(base, changed, watch);
  if (base.saved.empty() || changed.saved.empty())
    throw Error(ErrorCode::kUsage,
                "a saved result can only be compared with another saved one: measurements that are not made in turns cannot be "
                "distinguished from a "
                "change of the machine");
  log(LogLevel::kWarning, "both results are saved: changes of the machine between them count as a difference");
  const std::vector<CellComparison> compared = compare_saved(base.saved, changed.saved);
  if (compared.empty()) throw Error(ErrorCode::kInput, "the two results have no cell in common");
  return report_comparison(compared, watch);
}

BenchmarkWork BenchmarkTool::work_of(const Side& side, const BenchmarkCell& cell, size_t cells) const {
  std::vector<std::string> more = side.overrides;
  const std::vector<std::string> swept = overrides_of(cell);
  more.insert(more.end(), swept.begin(), swept.end());
  std::unique_ptr<LoadedRecipe> loaded = load(side.recipe, more);
  apply_machine_settings(loaded->recipe);
  // Sides may differ in what a run is made of: the section's own batch, where it was overridden.
  BenchmarkCell own = cell;
  if (cells == 1) {
    const std::vector<BenchmarkCell> of_side = cells_of(*loaded);
    if (of_side.size() == 1) own = of_side.front();
  }
  return benchmark_work(std::move(loaded), side.recipe, own);
}

int BenchmarkTool::compare_recipes(const Side& base, const Side& changed, const MachineWatch& watch) {
  const ComponentRegistry& components = recipe_components();
  const LoadedRecipe first = load_recipe(base.recipe, components, options_with(base.overrides));
  const std::vector<BenchmarkCell> cells = cells_of(first);
  const TimerOptions timing = timer_options(first.recipe.benchmark);
  const double equal_within = first.recipe.benchmark.equal_within.percent / 100;
  if (dry_run_) {
    load_recipe(changed.recipe, components, options_with(changed.overrides));
    Table table{{"cell", "base", "new"}, {}};
    Json json{{"cells", Json::array()},
              {"base", side_json(base.recipe, base.overrides)},
              {"new", side_json(changed.recipe, changed.overrides)},
              {"at_most_s", timing.max_time_s * static_cast<double>(cells.size())},
              {"provenance", provenance_json(run_provenance())}};
    for (const BenchmarkCell& cell : cells) {
      table.rows.push_back({cell.name(), side_text(base.recipe, base.overrides), side_text(changed.recipe, changed.overrides)});
      json["cells"].push_back(cell.name());
    }
    report_object(json, table);
    return kExitDone;
  }
  // The medians must be more precise than the change that counts as equal.
  TimerOptions precise = timing;
  precise.relative_error = std::min(timing.relative_error, equal_within / 4);
  std::vector<CellComparison> compared;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  for (size_t c = 0; c < cells.size(); ++c) {
    const BenchmarkCell& cell = cells[c];
    progress.update(static_cast<double>(c) / static_cast<double>(cells.size()), cat("[", c + 1, "/", cells.size(), "] ", cell.name()),
                    Json{{"cell", c + 1}, {"cells", cells.size()}}.dump());
    const auto make = [&](const Side& side) {
      try {
        return work_of(side, cell, cells.size());
      } catch (const Error& error) {
        throw placed(error, side.recipe, side.overrides);
      }
    };
    BenchmarkWork first_work = make(base), second_work = make(changed);
    const ComparedWork work = compared_work(std::move(first_work), std::move(second_work), [&] { return make(base); });
    const std::vector<std::function<void()>> works{work.base.run, work.changed.run, work.again.run};
    const std::vector<Series> series = time_interleaved(works, precise);
    if (stop_signal() != 0) {
      progress.clear();
      return stopped(c, cells.size(), false);
    }
    compared.push_back(compare_cell(cell.name(), series, equal_within, work.min_effect));
  }
  progress.clear();
  return report_comparison(compared, watch);
}

int BenchmarkTool::report_comparison(const std::vector<CellComparison>& compared, const MachineWatch& watch) const {
  const std::vector<std::string> remarks = watch.remarks(compute_threads());
  for (const std::string& remark : remarks) log(LogLevel::kWarning, remark);
  report_object({{"compare", comparison_json(compared)}, {"remarks", remarks}, {"provenance", provenance_json(run_provenance())}},
                comparison_table(compared));
  const auto any = [&](Verdict verdict) {
    return std::any_of(compared.begin(), compared.end(), [&](const CellComparison& item) { return item.result.verdict == verdict; });
  };
  return any(Verdict::kSlower) ? kExitGoalMissed : any(Verdict::kCannotTell) ? kExitInconclusive : kExitDone;
}

}  // namespace galley::tools
