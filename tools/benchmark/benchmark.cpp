#include "tools/benchmark/benchmark.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <CLI/CLI.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/infer/components.h"
#include "libcore/profiler/machine_report.h"
#include "tools/benchmark/database.h"
#include "tools/benchmark/results.h"
#include "tools/common/journal.h"
#include "tools/common/machine_limits.h"
#include "tools/common/signals.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string signed_percent(double share) {
  char text[64];
  std::snprintf(text, sizeof text, "%+.2f %%", 100 * share);
  return text;
}

/// batch=1,2 and threads=1..8x2 sweep: a list or range where one value stands.
std::string as_sweep(const std::string& override_text) {
  const size_t equals = override_text.find('=');
  const std::string key = override_text.substr(0, equals), value = equals == std::string::npos ? "" : override_text.substr(equals + 1);
  const bool many = value.find(',') != std::string::npos || value.find("..") != std::string::npos;
  constexpr std::array<std::string_view, 4> swept{"batch", "threads", "precision", "memory_format"};
  return many && std::find(swept.begin(), swept.end(), key) != swept.end() ? "benchmark.sweep." + override_text : override_text;
}

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

/// Every word an override?
bool are_overrides(const std::vector<std::string>& words) { return !words.empty() && std::all_of(words.begin(), words.end(), is_override); }

/// Keys of a cell that are the recipe's.
std::vector<std::string> overrides_of(const Cell& cell) {
  std::vector<std::string> overrides;
  for (const auto& [key, value] : cell.set) overrides.push_back(key == "precision" ? "precision.compute=" + value : key + "=" + value);
  return overrides;
}

TimerOptions stoppable(TimerOptions options) {
  options.stop = [] { return stop_signal() != 0; };
  return options;
}

std::string journal_key(const Row& row) {
  std::string key = cat(row.recipe, "|", row.what, "|", row.batch);
  for (const auto& [name, value] : row.set) key += cat("|", name, "=", value);
  return key;
}

}  // namespace

void BenchmarkTool::add_options(CLI::App& app) {
  RecipeTool::add_options(app);
  app.get_option("RECIPE")->description("recipes (files, built-in names, RUN folders, - for standard input), timed in turns; then overrides: what=forward,train_step,data,load batch=1..8x2 threads=1,2 "
                                        "memory_format=, precision=, stop.ci=, stop.max_time= and every other key. Or: op [NAME | CASE ...] [precision.winograd=false], machine, memory_order");
  app.add_option("--compare", compare_, "time BASE and NEW in turns and decide: each a recipe, saved JSON, or overrides in quotes; exit 0 NEW is faster or the same, 6 slower, 9 cannot tell")
      ->expected(2)->allow_extra_args(false)->type_name("BASE NEW")->group("Compare");
  app.add_option("--html", html_, "write a page with curves over the sweep, the roofline and the rows")->type_name("FILE")->group("Output")->take_last();
  app.add_option("--sqlite", sqlite_, "add the rows to this SQLite database (tables runs and rows), made where it is missing")->type_name("FILE")->group("Output")->take_last();
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
  apply_machine_settings(loaded->recipe);
  return loaded;
}

int BenchmarkTool::stopped(size_t cells_done, size_t cells, bool keeps_journal) const {
  const std::string kept = cat("stopped after ", cells_done, " of ", cells, cells == 1 ? " cell" : " cells");
  if (output_.empty()) {
    log(LogLevel::kWarning, !keeps_journal ? kept : cat(kept, "; with -o JOURNAL the same command would go on from there"));
    return 128 + stop_signal();
  }
  log(LogLevel::kWarning, cat(kept, ", which are in ", output_, ": the same command goes on"));
  return kExitResumable;
}

TimerOptions BenchmarkTool::timer_options(const BenchmarkSection& section) const {
  TimerOptions options = stoppable({});
  options.relative_error = section.stop.ci.percent / 100;
  options.min_runs = section.stop.min_runs;
  if (section.stop.max_time.unit != DurationUnit::kSeconds) throw Error(ErrorCode::kRecipe, "benchmark.stop.max_time is a time").key("benchmark.stop.max_time").suggest("e.g. 30s");
  options.max_time_s = section.stop.max_time.value;
  options.warmup = section.warmup.value_or(-1);
  options.cold = section.cache == CacheState::kCold;
  return options;
}

Provenance BenchmarkTool::who() const {
  Provenance provenance;
  provenance.tool = name();
  provenance.overrides = overrides_;
  provenance.threads = compute_threads();
  return provenance;
}

void BenchmarkTool::report_object(const Json& json, const Table& table) const {
  const auto text = [&](Format format) { return format == Format::kJson || format == Format::kJsonLines ? json.dump() + "\n" : render(table, format); };
  for (const auto& [format, file] : common.save) write_file(file, text(format));
  print(text(common.format));
}

void BenchmarkTool::report(const std::vector<Row>& rows, const std::vector<std::string>& remarks) {
  Results results{rows, thread_scaling(rows), remarks, provenance_json(who())};
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.error.empty() && row.limit_fraction() > 1.1; })) {
    results.remarks.push_back("a row is above the machine's limit: that was measured while other programs ran; `galley-benchmark machine` on a quiet machine measures it anew");
  }
  const auto text = [&](Format format) {
    switch (format) {
      case Format::kJson: return results_json(results).dump() + "\n";
      case Format::kJsonLines: return results_lines(results);
      case Format::kCsv: return render(row_table(rows), format);
      default: return render(row_table(rows), format) + (results.scaling.empty() ? "" : "\n" + render(scaling_table(results.scaling), format));
    }
  };
  for (const auto& [format, file] : common.save) write_file(file, text(format));
  if (!html_.empty()) write_file(html_, results_page(results));
  if (!sqlite_.empty()) add_to_database(sqlite_, results);
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
    throw Error(ErrorCode::kUsage, cat(!html_.empty() ? "--html" : !sqlite_.empty() ? "--sqlite" : "-o", " is for sweeps: --compare gives one verdict")).suggest("--save json:FILE keeps it");
  }
  if (!dry_run_) {
    if (!sqlite_.empty()) check_database(sqlite_);
    check_outputs({html_});
  }
  const std::string verb = recipes.empty() ? "" : recipes.front();
  const std::vector<std::string> rest(recipes.begin() + (recipes.empty() ? 0 : 1), recipes.end());
  if (verb == "machine" || verb == "memory_order" || verb == "op") {
    if (!output_.empty()) throw Error(ErrorCode::kUsage, cat("-o is for sweeps: ", verb, " keeps no journal")).suggest("--save json:FILE keeps the result");
    if (threads_ != 0) set_compute_threads(static_cast<int>(threads_));
    bool winograd = true;
    for (const std::string& word : given) {
      const bool known = verb == "op" && (word == "precision.winograd=true" || word == "precision.winograd=false");
      if (!known) throw Error(ErrorCode::kUsage, cat("'", verb, "' takes no recipe, and so no '", word, "'")).suggest(verb == "op" ? "--threads N, or precision.winograd=false" : "--threads N");
      winograd = word == "precision.winograd=true";
    }
    if (verb == "op") return measure_operators(rest, winograd);
    if (!rest.empty()) throw Error(ErrorCode::kUsage, cat("'", verb, "' takes nothing more, not '", rest.front(), "'"));
    return verb == "machine" ? measure_machine_parts() : measure_memory_order();
  }
  if (!compare_.empty()) return compare(recipes);
  if (recipes.empty()) {
    throw Error(ErrorCode::kUsage, "no recipe was named").suggest("name recipes, or op CASE, machine, memory_order; galley-recipes ls lists the built-in ones");
  }
  return sweep(recipes);
}

int BenchmarkTool::sweep(const std::vector<std::string>& recipes) {
  if (std::find(recipes.begin(), recipes.end(), "-") != recipes.end()) standard_input_.assign(std::istreambuf_iterator<char>(std::cin), {});
  const ComponentRegistry& components = recipe_components();
  if (!explain_.empty()) {
    const Schema schema = recipe_schema(components);
    print(explain(load_tree(recipes[0], schema, options_with({})), schema, explain_, options_with({})));
    return kExitDone;
  }
  // The first recipe's section says what is measured; the others are its rivals.
  const LoadedRecipe first = load_recipe(recipes[0], components, options_with({}));
  if (!dump_.empty()) {
    print(dump_recipe(first, dump_ == "full" ? DumpKind::kFull : dump_ == "origin" ? DumpKind::kOrigin : DumpKind::kMin));
    return kExitDone;
  }
  const std::vector<Cell> cells = cells_of(first.recipe.benchmark);
  const TimerOptions timing = timer_options(first.recipe.benchmark);
  std::string command;
  for (const std::string& recipe : recipes) command += cat(recipe, "|", dump_recipe(load_recipe(recipe, components, options_with({})), DumpKind::kMin), "|");
  Journal journal(output_, sha256_hex(command));
  const double at_most = timing.max_time_s * static_cast<double>(cells.size());
  log(LogLevel::kInfo, cat(cells.size() * recipes.size(), " cells, at most ", human_seconds(at_most)));
  if (dry_run_) {
    Table table{{"recipe", "cell"}, {}};
    Json json{{"cells", Json::array()}, {"at_most_s", at_most}, {"provenance", provenance_json(who())}};
    for (const Cell& cell : cells) {
      for (const std::string& recipe : recipes) {
        table.rows.push_back({recipe, cell.name()});
        json["cells"].push_back({{"recipe", recipe}, {"what", cell.what}, {"batch", cell.batch}, {"set", Json::object()}});
        for (const auto& [key, value] : cell.set) json["cells"].back()["set"][key] = value;
      }
    }
    report_object(json, table);
    return kExitDone;
  }

  journal.check();
  const MachineWatch watch;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  std::vector<Row> rows;
  std::optional<ErrorCode> first_error;
  for (size_t c = 0; c < cells.size(); ++c) {
    const Cell& cell = cells[c];
    progress.update(static_cast<double>(c) / static_cast<double>(cells.size()), cat("[", c + 1, "/", cells.size(), "] ", cell.name()), Json{{"cell", c + 1}, {"cells", cells.size()}, {"name", cell.name()}}.dump());
    std::vector<Candidate> candidates;
    const size_t begin = rows.size();
    for (const std::string& recipe : recipes) {
      Row known;
      known.recipe = recipe;
      known.what = cell.what;
      known.batch = cell.what == "load" ? 0 : cell.batch;
      known.set = cell.set;
      if (const Json* found = journal.find(journal_key(known))) {
        rows.push_back(row_of_json(*found));
        continue;
      }
      // A cell that cannot run is a result of its own: the sweep goes on.
      try {
        candidates.push_back(make_candidate(load(recipe, overrides_of(cell)), recipe, cell));
        rows.push_back(candidates.back().row);
      } catch (const Error& error) {
        known.threads = compute_threads();
        known.error = error.message();
        rows.push_back(known);
        if (!first_error) first_error = error.code();
        log(LogLevel::kWarning, cat(recipe, " ", cell.name(), ": ", error.message()));
      }
    }
    std::vector<std::function<void()>> works;
    for (const Candidate& candidate : candidates) works.push_back(candidate.run);
    if (works.empty()) continue;
    const std::vector<Series> series = time_interleaved(works, timing);
    if (stop_signal() != 0) {
      progress.clear();
      return stopped(c, cells.size(), true);
    }
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto row = std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(begin), rows.end(), [&](const Row& r) { return r.recipe == candidates[i].row.recipe && r.error.empty() && r.seconds.empty(); });
      GALLEY_ASSERT(row != rows.end());
      finish(*row, series[i]);
      journal.add(journal_key(*row), row_json(*row));
    }
  }
  progress.clear();
  report(rows, watch.remarks(compute_threads()));
  // One cell that cannot run is a row of the result; where none could, nothing was measured.
  const bool measured = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.error.empty(); });
  return measured || !first_error ? kExitDone : static_cast<int>(*first_error);
}

int BenchmarkTool::compare(const std::vector<std::string>& recipes) {
  if (recipes.size() > 1) throw Error(ErrorCode::kUsage, cat("--compare takes one RECIPE beside BASE and NEW, not also '", recipes[1], "'"));
  const ComponentRegistry& components = recipe_components();
  struct Side {
    std::string recipe;
    std::vector<std::string> overrides;
    std::vector<Row> saved;
  };
  const auto side_of = [&](const std::string& text) {
    Side side;
    if (text.ends_with(".json") && file_exists(text)) {
      const Json json = Json::parse(read_file(text), nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("rows")) throw Error(ErrorCode::kInput, cat(text, ": no result of galley-benchmark")).suggest("--save json:FILE writes one");
      try {
        for (const Json& row : json["rows"]) side.saved.push_back(row_of_json(row));
      } catch (const nlohmann::json::exception& error) {
        throw Error(ErrorCode::kInput, cat(text, ": ", error.what()));
      }
      return side;
    }
    const std::vector<std::string> words = words_of(text);
    if (are_overrides(words)) {
      if (recipes.empty()) throw Error(ErrorCode::kUsage, cat("'", text, "' are overrides, and no RECIPE was named")).suggest("galley-benchmark RECIPE --compare 'key=a' 'key=b'");
      side.recipe = recipes[0];
      side.overrides = words;
    } else {
      side.recipe = text;
    }
    return side;
  };
  const Side base = side_of(compare_[0]), changed = side_of(compare_[1]);
  struct Compared {
    std::string name;
    double base_ms, new_ms;
    RoundComparison result;
  };
  std::vector<Compared> compared;
  const MachineWatch watch;
  if (!base.saved.empty() || !changed.saved.empty()) {
    if (base.saved.empty() || changed.saved.empty()) throw Error(ErrorCode::kUsage, "a saved result can be compared with another saved one only: what is not measured in turns cannot be told apart from a change of the machine");
    log(LogLevel::kWarning, "both results were saved: what changed on the machine between them counts as a difference");
    for (const Row& row : base.saved) {
      const auto other = std::find_if(changed.saved.begin(), changed.saved.end(), [&](const Row& r) { return r.what == row.what && r.batch == row.batch && r.threads == row.threads && r.set == row.set; });
      if (other == changed.saved.end() || !row.error.empty() || !other->error.empty()) continue;
      Compared item{cat(row.what, " batch=", row.batch), row.time.median * 1e3, other->time.median * 1e3, {}};
      item.result.change = other->time.median / row.time.median - 1;
      item.result.interval = {other->time.interval.low / row.time.interval.high - 1, other->time.interval.high / row.time.interval.low - 1};
      item.result.noise = 0.02;  // two runs of one program on one machine: not measured here, so assumed
      item.result.smallest_effect = item.result.noise + (item.result.interval.high - item.result.interval.low) / 2;
      item.result.verdict = item.result.interval.low > item.result.noise    ? Verdict::kSlower
                            : item.result.interval.high < -item.result.noise ? Verdict::kFaster
                            : item.result.interval.low >= -item.result.noise && item.result.interval.high <= item.result.noise ? Verdict::kSame
                                                                                                                               : Verdict::kCannotTell;
      compared.push_back(item);
    }
    if (compared.empty()) throw Error(ErrorCode::kInput, "the two results have no cell in common");
  } else {
    LoadedRecipe first = load_recipe(base.recipe, components, options_with(base.overrides));
    const std::vector<Cell> cells = cells_of(first.recipe.benchmark);
    const TimerOptions timing = timer_options(first.recipe.benchmark);
    const double equal_within = first.recipe.benchmark.equal_within.percent / 100;
    if (dry_run_) {
      load_recipe(changed.recipe, components, options_with(changed.overrides));
      Table table{{"cell"}, {}};
      Json json{{"cells", Json::array()}, {"at_most_s", timing.max_time_s * static_cast<double>(cells.size())}, {"provenance", provenance_json(who())}};
      for (const Cell& cell : cells) {
        table.rows.push_back({cell.name()});
        json["cells"].push_back(cell.name());
      }
      report_object(json, table);
      return kExitDone;
    }
    Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
    for (size_t c = 0; c < cells.size(); ++c) {
      const Cell& cell = cells[c];
      progress.update(static_cast<double>(c) / static_cast<double>(cells.size()), cat("[", c + 1, "/", cells.size(), "] ", cell.name()), Json{{"cell", c + 1}, {"cells", cells.size()}}.dump());
      const auto candidate_of = [&](const Side& side) {
        std::vector<std::string> more = side.overrides;
        const std::vector<std::string> swept = overrides_of(cell);
        more.insert(more.end(), swept.begin(), swept.end());
        std::unique_ptr<LoadedRecipe> loaded = load(side.recipe, more);
        // Sides may differ in what a run is made of: the section's own batch, where it was overridden.
        Cell own = cell;
        if (cells.size() == 1) {
          const std::vector<Cell> of_side = cells_of(loaded->recipe.benchmark);
          if (of_side.size() == 1) own = of_side.front();
        }
        return make_candidate(std::move(loaded), side.recipe, own);
      };
      const Candidate a = candidate_of(base), b = candidate_of(changed);
      // The base's second run in a round is an instance of its own where its memory is small. The same one would run twice in succession, from one round's end
      // to the next one's begin, with caches that it filled itself; and where memory happens to lie shows in so short a time: both belong to the noise.
      constexpr int64_t kSmall = int64_t{256} << 20;
      const bool small = a.row.planned_bytes > 0 && a.row.planned_bytes <= kSmall;
      // Programs that live in the caches differ by where their pages happen to lie, for as long as they live: instances of cifar_resnet20's forward pass by 0.7 %
      // (standard deviation over 15 comparisons). Three times that is no change of the program yet.
      constexpr int64_t kCached = int64_t{64} << 20;
      const double placement = a.row.planned_bytes > 0 && a.row.planned_bytes <= kCached ? 0.02 : 0;
      const Candidate again = small ? candidate_of(base) : a;
      const std::vector<std::function<void()>> works{a.run, b.run, again.run};
      // Medians as uncertain as the change that counts as none could not tell it.
      TimerOptions closely = timing;
      closely.relative_error = std::min(timing.relative_error, equal_within / 4);
      const std::vector<Series> series = time_interleaved(works, closely);
      if (stop_signal() != 0) {
        progress.clear();
        return stopped(c, cells.size(), false);
      }
      // Where a sample repeats its work, the sides repeat as often as each needs: times are of one repetition, so they compare.
      Compared item{cell.name(), summarize(series[0].seconds).median * 1e3, summarize(series[1].seconds).median * 1e3,
                    compare_rounds(series[0].seconds, series[1].seconds, series[2].seconds, equal_within, placement)};
      compared.push_back(item);
    }
    progress.clear();
  }

  Json json{{"compare", Json::array()}};
  Table table{{"cell", "base_ms", "new_ms", "change", "95 % interval", "noise", "smallest effect", "verdict"}, {}};
  bool slower = false, unclear = false;
  for (const Compared& item : compared) {
    const RoundComparison& r = item.result;
    json["compare"].push_back({{"cell", item.name}, {"base_ms", item.base_ms}, {"new_ms", item.new_ms}, {"change", r.change}, {"low", r.interval.low}, {"high", r.interval.high}, {"noise", r.noise}, {"smallest_effect", r.smallest_effect}, {"verdict", verdict_name(r.verdict)}});
    table.rows.push_back({item.name, human_number(item.base_ms), human_number(item.new_ms), signed_percent(r.change), cat(signed_percent(r.interval.low), " .. ", signed_percent(r.interval.high)), signed_percent(r.noise), signed_percent(r.smallest_effect), std::string(verdict_name(r.verdict))});
    slower = slower || r.verdict == Verdict::kSlower;
    unclear = unclear || r.verdict == Verdict::kCannotTell;
  }
  json["remarks"] = watch.remarks(compute_threads());
  json["provenance"] = provenance_json(who());
  for (const std::string& remark : watch.remarks(compute_threads())) log(LogLevel::kWarning, remark);
  report_object(json, table);
  return slower ? kExitGoalMissed : unclear ? kExitInconclusive : kExitDone;
}

int BenchmarkTool::measure_operators(const std::vector<std::string>& cases, bool winograd) {
  std::vector<std::string> all;
  for (const std::string& text : cases.empty() ? std::vector<std::string>{""} : cases) {
    if (text.find(':') != std::string::npos) {
      all.push_back(text);
    } else {
      for (std::string& item : operator_cases(text)) all.push_back(std::move(item));
    }
  }
  if (dry_run_) {
    Table table{{"case"}, {}};
    for (const std::string& text : all) table.rows.push_back({text});
    report_object({{"cases", all}, {"provenance", provenance_json(who())}}, table);
    return kExitDone;
  }
  const MachineWatch watch;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  std::vector<Row> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    progress.update(static_cast<double>(i) / static_cast<double>(all.size()), cat("[", i + 1, "/", all.size(), "] ", all[i]), Json{{"case", all[i]}}.dump());
    Candidate candidate = make_operator(all[i], winograd);
    const std::vector<std::function<void()>> works{candidate.run};
    finish(candidate.row, time_interleaved(works, stoppable({.relative_error = 0.02, .min_runs = 10, .max_time_s = 3})).front());
    if (stop_signal() != 0) {
      progress.clear();
      return stopped(i, all.size(), false);
    }
    rows.push_back(candidate.row);
  }
  progress.clear();
  report(rows, watch.remarks(compute_threads()));
  return kExitDone;
}

int BenchmarkTool::measure_machine_parts() {
  const MachineWatch watch;
  const MachineReport machine = measure_machine_report();
  Json json{{"threads", machine.threads}, {"cpu", machine.cpu}, {"peaks", Json::array()}, {"levels", Json::array()}};
  Table table{{"what", "of", "value", "unit"}, {}};
  for (const PeakRate& peak : machine.peaks) {
    json["peaks"].push_back({{"dtype", peak.dtype}, {"isa", peak.instruction_set}, {"per_s", peak.per_s}});
    table.rows.push_back({"peak " + peak.dtype, peak.instruction_set, human_number(peak.per_s / 1e9), peak.dtype == "int8" ? "GOP/s" : "GFLOP/s"});
  }
  for (const LevelBandwidth& level : machine.levels) {
    json["levels"].push_back({{"level", level.level}, {"bytes", level.bytes}, {"read_per_s", level.read_per_s}});
    table.rows.push_back({"read " + level.level, human_bytes(static_cast<double>(level.bytes)) + " a thread", human_number(level.read_per_s / 1e9), "GB/s"});
  }
  table.rows.push_back({"read and write memory", "a = b + s c", human_number(machine.triad_per_s / 1e9), "GB/s"});
  table.rows.push_back({"page touch", "4 KiB", human_number(machine.page_touch_s * 1e9), "ns"});
  table.rows.push_back({"barrier", cat(machine.threads, " threads"), human_number(machine.barrier_s * 1e6), "us"});
  json["f32_per_s"] = machine.f32_per_s();
  json["triad_per_s"] = machine.triad_per_s;
  json["page_touch_ns"] = machine.page_touch_s * 1e9;
  json["barrier_us"] = machine.barrier_s * 1e6;
  json["doubts"] = machine.doubts;
  json["remarks"] = watch.remarks(machine.threads);
  json["provenance"] = provenance_json(who());
  for (const std::string& doubt : machine.doubts) log(LogLevel::kWarning, "doubtful: " + doubt);
  for (const std::string& remark : watch.remarks(machine.threads)) log(LogLevel::kWarning, remark);
  if (machine.doubts.empty()) {
    const std::string store = machine_store(machine.threads);
    make_folders(store.substr(0, store.rfind('/')));
    write_file(store, json.dump() + "\n");
    log(LogLevel::kInfo, "stored in " + store + ": later results are compared with it");
  } else {
    log(LogLevel::kWarning, "not stored: run it again on a quiet machine");
  }
  report_object(json, table);
  return kExitDone;
}

int BenchmarkTool::measure_memory_order() {
  constexpr int64_t kSide = 4000;
  std::vector<float> matrix(static_cast<size_t>(kSide * kSide), 1.0f);
  volatile float keep = 0;
  const std::vector<std::function<void()>> works{
      [&] {
        float sum = 0;
        for (int64_t row = 0; row < kSide; ++row)
          for (int64_t column = 0; column < kSide; ++column) sum += matrix[static_cast<size_t>(row * kSide + column)];
        keep = sum;
      },
      [&] {
        float sum = 0;
        for (int64_t column = 0; column < kSide; ++column)
          for (int64_t row = 0; row < kSide; ++row) sum += matrix[static_cast<size_t>(row * kSide + column)];
        keep = sum;
      }};
  const MachineWatch watch;
  const std::vector<Series> series = time_interleaved(works, stoppable({.relative_error = 0.02, .min_runs = 10, .max_time_s = 10}));
  if (stop_signal() != 0) return stopped(0, 1, false);
  static_cast<void>(keep);
  std::vector<Row> rows(2);
  for (size_t i = 0; i < 2; ++i) {
    rows[i].recipe = "memory_order";
    rows[i].what = i == 0 ? "row by row" : "column by column";
    rows[i].threads = 1;
    rows[i].bytes = 4.0 * kSide * kSide;
    finish(rows[i], series[i]);
  }
  std::vector<std::string> remarks = watch.remarks(1);
  report(rows, remarks);
  log(LogLevel::kInfo, cat("columns take ", human_number(rows[1].time.median / rows[0].time.median), " times as long as rows: a 4000 x 4000 matrix, f32, one thread"));
  return kExitDone;
}

}  // namespace galley::tools
