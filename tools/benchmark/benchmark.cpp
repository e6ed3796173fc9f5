#include "tools/benchmark/benchmark.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/infer/components.h"
#include "libcore/profiler/benchmark_results.h"
#include "tools/benchmark/database.h"
#include "tools/common/ranks.h"
#include "tools/common/signals.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Turns overrides with a list or range, such as batch=1,2 or threads=1..8x2, into a sweep.
std::string as_sweep(const std::string& override_text) {
  const size_t equals = override_text.find('=');
  const std::string key = override_text.substr(0, equals), value = equals == std::string::npos ? "" : override_text.substr(equals + 1);
  const bool many = value.find(',') != std::string::npos || value.find("..") != std::string::npos;
  constexpr std::array<std::string_view, 4> swept{"batch", "threads", "precision", "memory_format"};
  return many && std::find(swept.begin(), swept.end(), key) != swept.end() ? "benchmark.sweep." + override_text : override_text;
}

}  // namespace

void BenchmarkTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.option("RECIPE").description(
      "recipes, timed in turns, and overrides (what=train_step batch=1..8x2); or op CASE, machine, memory_order, collectives");
  command
      .add_option("--compare", compare_,
                  "time two recipes, saved results or quoted overrides in turns; exit code 6: NEW is slower, 9: inconclusive")
      .expected(2)
      .one_word_each()
      .type_name("BASE NEW")
      .group("Compare");
  command.add_option("--html", html_, "write an HTML page with curves over the sweep, the roofline and all rows")
      .type_name("FILE")
      .group("Output")
      .take_last();
  command.add_option("--simulate-ranks", simulated_ranks_, "collectives: this number of ranks as threads of one process (default 2)")
      .in_range(1, kMostSimulatedRanks)
      .group("Machine")
      .take_last();
  command.add_option("--sqlite", sqlite_, "add the rows to this SQLite database (tables runs and rows), which is created if necessary")
      .type_name("FILE")
      .group("Output")
      .take_last();
}

LoadOptions BenchmarkTool::options_with(const std::vector<std::string>& more) const {
  LoadOptions options = load_options();
  options.standard_input = standard_input_;
  for (std::string& text : options.overrides) text = as_sweep(text);
  options.overrides.insert(options.overrides.end(), more.begin(), more.end());
  return options;
}

std::unique_ptr<LoadedRecipe> BenchmarkTool::load(const std::string& recipe, const std::vector<std::string>& more) const {
  auto loaded = std::make_unique<LoadedRecipe>(load_recipe(recipe, recipe_components(), options_with(more)));
  if (takes_run_weights(*loaded)) use_run_weights(*loaded);
  resolve_weights(loaded->recipe, weight_registry());
  make_paths_absolute(loaded->recipe);
  return loaded;
}

int BenchmarkTool::stopped(size_t cells_done, size_t cells, bool keeps_journal) const {
  const std::string kept = cat("stopped after ", cells_done, " of ", cells, cells == 1 ? " cell" : " cells");
  if (output_.empty()) {
    log(LogLevel::kWarning, !keeps_journal ? kept : cat(kept, "; with -o JOURNAL, the same command could continue from there"));
    return 128 + stop_signal();
  }
  log(LogLevel::kWarning, cat(kept, ", saved in ", output_, ": run the same command again to continue"));
  return kExitResumable;
}

TimerOptions stoppable(TimerOptions options) {
  options.stop = [] { return stop_signal() != 0; };
  return options;
}

TimerOptions timer_options(const BenchmarkSection& section) {
  TimerOptions options = stoppable({});
  options.relative_error = section.stop.ci.percent / 100;
  options.min_runs = section.stop.min_runs;
  options.max_time_s = section.stop.max_time.value;
  options.warmup = section.warmup.value_or(-1);
  options.cold = section.cache == CacheState::kCold;
  return options;
}

std::vector<BenchmarkCell> cells_of(const LoadedRecipe& loaded) {
  try {
    return galley::cells_of(loaded.recipe.benchmark);
  } catch (const Error& error) {
    throw with_place(error, loaded);
  }
}

std::vector<std::string> overrides_of(const BenchmarkCell& cell) {
  std::vector<std::string> overrides;
  for (const auto& [key, value] : cell.set) overrides.push_back(key == "precision" ? "precision.compute=" + value : key + "=" + value);
  return overrides;
}

Provenance BenchmarkTool::run_provenance() const {
  Provenance provenance;
  provenance.tool = name();
  provenance.overrides = overrides_;
  provenance.threads = compute_threads();
  return provenance;
}

void BenchmarkTool::report_object(const Json& json, const Table& table) const {
  const auto text = [&](Format format) {
    return format == Format::kJson || format == Format::kJsonLines ? json.dump() + "\n" : render(table, format);
  };
  for (const auto& [format, file] : common.save) write_file(file, text(format));
  print(text(common.format));
}

void BenchmarkTool::report(const std::vector<BenchmarkRow>& rows, const std::vector<std::string>& remarks) {
  const Json made_by = provenance_json(run_provenance());
  BenchmarkResults results{rows, thread_scaling(rows), remarks};
  if (std::any_of(rows.begin(), rows.end(), [](const BenchmarkRow& row) { return row.error.empty() && row.limit_fraction() > 1.1; })) {
    results.remarks.push_back(
        "a row exceeds the machine's limit, which was probably measured while other programs were running; measure it again on an idle "
        "machine "
        "with `galley-benchmark machine`");
  }
  const auto text = [&](Format format) {
    switch (format) {
      case Format::kJson: return benchmark_json(results, made_by).dump() + "\n";
      case Format::kJsonLines: return benchmark_lines(results, made_by);
      case Format::kCsv: return render(row_table(rows), format);
      default:
        return render(row_table(rows), format) + (results.scaling.empty() ? "" : "\n" + render(scaling_table(results.scaling), format));
    }
  };
  for (const auto& [format, file] : common.save) write_file(file, text(format));
  if (!html_.empty()) write_file(html_, benchmark_page(results, made_by));
  if (!sqlite_.empty()) add_to_database(sqlite_, results, made_by);
  for (const std::string& remark : results.remarks) log(LogLevel::kWarning, remark);
  print(text(common.format));
}

int BenchmarkTool::run() {
  std::vector<std::string> recipes;
  split_arguments(words_, recipes, overrides_);
  const std::vector<std::string> given = overrides_;
  if (threads_ != 0) overrides_.push_back(cat("threads=", threads_));
  if (!device_.empty()) overrides_.push_back("device=" + device_);
  if (!seed_.empty()) overrides_.push_back("seed=" + seed_);
  if (!compare_.empty() && (!html_.empty() || !sqlite_.empty() || !output_.empty())) {
    throw Error(ErrorCode::kUsage, cat(!html_.empty()     ? "--html"
                                       : !sqlite_.empty() ? "--sqlite"
                                                          : "-o",
                                       " is only for sweeps and cannot be combined with --compare"))
        .suggest("use --save json:FILE to save the comparison");
  }
  if (!dry_run_) {
    if (!sqlite_.empty()) check_database(sqlite_);
    check_outputs({html_});
  }
  const std::string verb = recipes.empty() ? "" : recipes.front();
  const std::vector<std::string> rest(recipes.begin() + (recipes.empty() ? 0 : 1), recipes.end());
  if (simulated_ranks_ != 0 && verb != "collectives") fail(ErrorCode::kUsage, "--simulate-ranks is only for 'collectives'");
  if (verb == "machine" || verb == "memory_order" || verb == "op" || verb == "collectives") return measure_machine(verb, rest, given);
  if (!compare_.empty()) return compare(recipes);
  if (recipes.empty()) {
    throw Error(ErrorCode::kUsage, "no recipe was given")
        .suggest("give recipes, or op CASE, machine, memory_order or collectives; galley-recipes ls lists the built-in recipes");
  }
  return sweep(recipes);
}

}  // namespace galley::tools
