// galley-benchmark RECIPE...: recipes over a sweep.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/infer/components.h"
#include "libcore/train/benchmark_work.h"
#include "tools/benchmark/benchmark.h"
#include "tools/common/journal.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string journal_key(const BenchmarkRow& row) {
  std::string key = cat(row.recipe, "|", row.what, "|", row.batch);
  for (const auto& [name, value] : row.set) key += cat("|", name, "=", value);
  return key;
}

}  // namespace

int BenchmarkTool::sweep(const std::vector<std::string>& recipes) {
  if (std::find(recipes.begin(), recipes.end(), "-") != recipes.end()) standard_input_.assign(std::istreambuf_iterator<char>(std::cin), {});
  const ComponentRegistry& components = recipe_components();
  if (!explain_.empty()) {
    const Schema schema = recipe_schema(components);
    print(explain(load_tree(recipes[0], schema, options_with({})), schema, explain_, options_with({})));
    return kExitDone;
  }
  // The benchmark section of the first recipe defines what is measured.
  const LoadedRecipe first = load_recipe(recipes[0], components, options_with({}));
  if (!dump_.empty()) {
    print(dump_recipe(first, dump_ == "full" ? DumpKind::kFull : dump_ == "origin" ? DumpKind::kOrigin : DumpKind::kMin));
    return kExitDone;
  }
  const std::vector<BenchmarkCell> cells = cells_of(first);
  const TimerOptions timing = timer_options(first.recipe.benchmark);
  std::string command;
  for (const std::string& recipe : recipes)
    command += cat(recipe, "|", dump_recipe(load_recipe(recipe, components, options_with({})), DumpKind::kMin), "|");
  Journal journal(output_, sha256_hex(command));
  const double at_most = timing.max_time_s * static_cast<double>(cells.size());
  const size_t count = cells.size() * recipes.size();
  log(LogLevel::kInfo, cat(count, count == 1 ? " cell" : " cells", ", at most ", human_seconds(at_most)));
  if (dry_run_) return print_cells(recipes, cells, at_most);
  journal.check();
  return run_cells(recipes, cells, timing, journal);
}

int BenchmarkTool::print_cells(const std::vector<std::string>& recipes, const std::vector<BenchmarkCell>& cells, double at_most) const {
  Table table{{"recipe", "cell"}, {}};
  Json json{{"cells", Json::array()}, {"at_most_s", at_most}, {"provenance", provenance_json(run_provenance())}};
  for (const BenchmarkCell& cell : cells) {
    for (const std::string& recipe : recipes) {
      table.rows.push_back({recipe, cell.name()});
      json["cells"].push_back({{"recipe", recipe}, {"what", cell.what}, {"batch", cell.batch}, {"set", Json::object()}});
      for (const auto& [key, value] : cell.set) json["cells"].back()["set"][key] = value;
    }
  }
  report_object(json, table);
  return kExitDone;
}

Error BenchmarkTool::placed(const Error& error, const std::string& recipe, const std::vector<std::string>& more) const {
  try {
    return with_place(error, load_recipe(recipe, recipe_components(), options_with(more)));
  } catch (const Error&) {
    return error;  // the recipe itself does not load; the error has its place
  }
}

BenchmarkTool::CellWork BenchmarkTool::make_cell(const std::vector<std::string>& recipes, const BenchmarkCell& cell,
                                                 const Journal& journal) const {
  CellWork made;
  for (const std::string& recipe : recipes) {
    BenchmarkRow known;
    known.recipe = recipe;
    known.what = cell.what;
    known.batch = cell.what == "load" ? 0 : cell.batch;
    known.set = cell.set;
    if (const Json* found = journal.find(journal_key(known))) {
      made.rows.push_back(row_of_json(*found));
      continue;
    }
    // A cell that cannot run is a result too; the sweep continues.
    try {
      std::unique_ptr<LoadedRecipe> loaded = load(recipe, overrides_of(cell));
      known = benchmark_row(loaded->recipe, recipe, cell);
      apply_machine_settings(loaded->recipe);
      BenchmarkWork work = benchmark_work(std::move(loaded), recipe, cell);
      made.timed.push_back(made.rows.size());
      made.rows.push_back(work.row);
      made.works.push_back(std::move(work));
    } catch (const Error& error) {
      if (known.threads == 0) known.threads = compute_threads();
      known.error = error.message();
      made.rows.push_back(known);
      if (!made.error) made.error = error.code();
      log(LogLevel::kWarning, cat(recipe, " ", cell.name(), ": ", placed(error, recipe, overrides_of(cell)).text()));
    }
  }
  return made;
}

int BenchmarkTool::run_cells(const std::vector<std::string>& recipes, const std::vector<BenchmarkCell>& cells, const TimerOptions& timing,
                             Journal& journal) {
  const MachineWatch watch;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  std::vector<BenchmarkRow> rows;
  std::optional<ErrorCode> first_error;
  for (size_t c = 0; c < cells.size(); ++c) {
    const BenchmarkCell& cell = cells[c];
    progress.update(static_cast<double>(c) / static_cast<double>(cells.size()), cat("[", c + 1, "/", cells.size(), "] ", cell.name()),
                    Json{{"cell", c + 1}, {"cells", cells.size()}, {"name", cell.name()}}.dump());
    CellWork made = make_cell(recipes, cell, journal);
    if (!first_error) first_error = made.error;
    std::vector<std::function<void()>> works;
    for (const BenchmarkWork& work : made.works) works.push_back(work.run);
    if (!works.empty()) {
      const std::vector<Series> series = time_interleaved(works, timing);
      if (stop_signal() != 0) {
        progress.clear();
        return stopped(c, cells.size(), true);
      }
      for (size_t i = 0; i < made.works.size(); ++i) {
        BenchmarkRow& row = made.rows[made.timed[i]];
        finish(row, series[i]);
        journal.add(journal_key(row), row_json(row));
      }
    }
    std::move(made.rows.begin(), made.rows.end(), std::back_inserter(rows));
  }
  progress.clear();
  report(rows, watch.remarks(compute_threads()));
  // The command fails only if no cell could be measured.
  const bool measured = std::any_of(rows.begin(), rows.end(), [](const BenchmarkRow& row) { return row.error.empty(); });
  return measured || !first_error ? kExitDone : static_cast<int>(*first_error);
}

}  // namespace galley::tools
