#include "tools/profile/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/infer/components.h"
#include "libcore/profiler/machine_limits.h"
#include "libcore/profiler/profile_tables.h"
#include "libcore/profiler/timer.h"
#include "libcore/profiler/trace.h"
#include "libcore/recipe/loader.h"
#include "libcore/train/profiled_work.h"
#include "tools/common/signals.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

ProfileGroup group_of(const std::string& by) {
  return by == "layer"    ? ProfileGroup::kLayer
         : by == "module" ? ProfileGroup::kModule
         : by == "shape"  ? ProfileGroup::kShape
                          : ProfileGroup::kOperator;
}

bool stopped() { return stop_signal() != 0; }

Json comparison_json(const RoundComparison& result) {
  return {{"change_percent", 100 * result.change},
          {"low_percent", 100 * result.interval.low},
          {"high_percent", 100 * result.interval.high},
          {"noise_percent", 100 * result.noise},
          {"verdict", verdict_name(result.verdict)}};
}

Json verified_json(const RoundComparison& result, const Profile& profile) {
  Json json = comparison_json(result);
  json["gain_ms"] = -result.change * profile.wall_s / static_cast<double>(profile.steps) * 1e3;
  return json;
}

std::string comparison_text(const RoundComparison& result) {
  return cat(fixed(100 * std::abs(result.change), 1), " % ", result.change < 0 ? "less" : "more",
             " time (95 %: ", fixed(100 * result.interval.low, 1), " to ", fixed(100 * result.interval.high, 1), " %, noise ",
             fixed(100 * result.noise, 1), " %): ", verdict_name(result.verdict), "\n");
}

}  // namespace

/// What a run found, and what is written of it.
struct ProfileTool::Outcome {
  ProfileReport report;
  Trace trace;
  std::string json, html;
  std::optional<RoundComparison> verified, overhead;
};

void ProfileTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_option("--html", html_, "write an HTML page with timeline, flame graph, memory, tables and advice")
      .type_name("FILE")
      .group("Output")
      .take_last();
  command.add_option("--apply", apply_, "write a recipe fragment that applies the advice; use it with --with FILE")
      .type_name("FILE")
      .group("Output")
      .take_last();
  command.add_flag("--verify", verify_, "time the recipe with and without the advice applied, in turns, and report the gain")
      .group("Output");
  command.add_option("--verify-time", verify_s_, "seconds for --verify").in_range(0.1, 86400.0).group("Output").take_last();
  command
      .add_option("--overhead", overhead_s_,
                  "run steps with and without the recorder, in turns, for this time, and report the cost of recording")
      .type_name("SECONDS")
      .in_range(0.1, 86400.0)
      .group("Output")
      .take_last();
  command.add_option("--by", by_, "rows of the table: op, shape, module, layer")
      .one_of({"op", "shape", "module", "layer"})
      .group("Output")
      .take_last();
  command.add_option("--rows", rows_, "maximum number of table rows; 0: all").in_range(0, 1000000).group("Output").take_last();
  command.add_option("--trace-mib", trace_mib_, "maximum size of the trace in MiB before compression; the shortest nodes are dropped")
      .in_range(1, 2000)
      .group("Output")
      .take_last();
}

RoundComparison ProfileTool::verify(const LoadedRecipe& loaded, const std::vector<Advice>& advice) const {
  LoadOptions options = load_options();
  std::vector<std::string> seen;
  for (const Advice& item : advice) {  // if several items set a key, the first one is used, as in the fragment
    if (item.value.empty() || item.requantize || std::find(seen.begin(), seen.end(), item.key) != seen.end()) continue;
    seen.push_back(item.key);
    options.overrides.push_back(item.key + "=" + item.value);
  }
  LoadedRecipe changed = load_recipe(recipe_, recipe_components(), options);
  resolve_weights(changed.recipe, weight_registry());
  make_paths_absolute(changed.recipe);
  return compare_work(loaded.recipe, changed.recipe, verify_s_, stopped);
}

std::string ProfileTool::text(const Outcome& outcome) const {
  const ProfileReport& report = outcome.report;
  const Profile& profile = report.profile;
  const double steps = static_cast<double>(profile.steps), step = profile.wall_s / steps;
  const auto share = [&](double seconds) { return fixed(100 * seconds / profile.wall_s, 1) + " %"; };
  Table summary{{"profile", ""}, {}};
  summary.rows = {
      {"workload", cat(report.what, ", ", counted(report.batch, "sample"), ", ", counted(report.threads, "thread"),
                       report.synthetic ? ", random batches" : "")},
      {"step",
       cat(human_seconds(step), " (", profile.steps, " recorded), ", human_number(static_cast<double>(report.batch) / step), " samples/s")},
      {"time",
       cat("compute ", share(profile.compute_s), ", waiting for data ", share(profile.data_s), ", executor ", share(profile.gap_s))},
      {"throughput", cat(human_number(profile.work.flops / steps * 1e-9), " GFLOP and ", human_bytes(profile.work.bytes / steps),
                         " per step: ", human_number(profile.work.flops / profile.wall_s * 1e-9), " GFLOP/s, ",
                         human_number(profile.work.bytes / profile.wall_s * 1e-9), " GB/s")},
      {"limit", cat(fixed(100 * profile.work.limit_s / profile.wall_s, 1), " % of the measured machine limits, ",
                    limits_text(profile.machine, profile.work.executed))}};
  for (const ProfiledProgram& made : report.compilations) {
    summary.rows.push_back({"compiled", cat(made.program, " for ", made.reason, ": ", counted(made.operators, "operator"), " in ",
                                            human_seconds(made.seconds), ", run ", counted(made.runs, "time"))});
  }
  const size_t most = rows_ == 0 ? SIZE_MAX : static_cast<size_t>(rows_);
  std::string result =
      cat(render(summary, Format::kTable), "\n", render(operator_table(profile, group_of(by_), most), Format::kTable), "\n",
          render(module_table(profile, 2, most), Format::kTable), "\n", render(memory_table(profile), Format::kTable), "\n");
  if (report.advice.empty())
    result += cat("advice: no rule found anything to change; a step reaches ", fixed(100 * profile.work.limit_s / profile.wall_s, 1),
                  " % of the machine limits\n");
  for (const Advice& item : report.advice) {
    const std::string gain = cat(", ", item.gain_s >= 0 ? "gains " : "costs ", human_seconds(std::abs(item.gain_s)), " per step (",
                                 fixed(100 * std::abs(item.gain_s) / step, 1), " %, ", item.modeled ? "modeled" : "measured", ")");
    result += cat("advice [", item.code, "] ", item.message, "\n       -> ",
                  item.value.empty() ? "change " + item.key : item.key + "=" + item.value, item.gain_s == 0 ? "" : gain,
                  item.gain_bytes == 0 ? ""
                                       : cat(", ", human_bytes(std::abs(static_cast<double>(item.gain_bytes))),
                                             item.gain_bytes > 0 ? " less memory" : " more memory"),
                  "\n");
    if (!item.operators.empty()) result += "\n" + render(below_limit_table(item), Format::kTable) + "\n";
  }
  if (outcome.verified) result += "verified: with the advice applied, a sample takes " + comparison_text(*outcome.verified);
  if (outcome.overhead) result += "overhead: with the recorder, a step takes " + comparison_text(*outcome.overhead);
  return result;
}

void ProfileTool::print_fits(const Recipe& recipe, const ProfileReport& report) const {
  if (common.format == Format::kJson) {
    print(Json{{"fits", true},
               {"what", report.what},
               {"batch", report.batch},
               {"provenance", provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)))}}
              .dump() +
          "\n");
  } else {
    print(cat(report.what, ", ", counted(report.batch, "sample"), ": the recipe, its data and its weights are consistent\n"));
  }
}

bool ProfileTool::measure(const Recipe& recipe, const MachineWatch& watch, ProfiledWork& work, Outcome& outcome) const {
  ProfileReport& report = outcome.report;
  Progress progress(common.progress);
  const auto show = [&](int64_t done, int64_t all) {
    progress.update(static_cast<double>(done) / static_cast<double>(all), cat("step ", done, "/", all),
                    Json{{"step", done}, {"steps", all}}.dump());
  };
  Recorder recorder;
  const bool all = record(work, schedule_of(recipe), recorder, show, stopped);
  progress.clear();
  if (!all) return false;
  const MachineLimits machine = machine_limits(compute_threads(), recipe.device.str());
  report.profile = make_profile(recorder.recording(), machine);
  report.remarks = watch.remarks(static_cast<int>(report.threads));
  ProfileFacts facts = work.facts();
  facts.disturbed = !report.remarks.empty();
  report.advice = advise(report.profile, facts);
  report.compilations = work.compilations();
  if (!output_.empty())
    outcome.trace =
        make_trace(recorder.recording(),
                   {.max_bytes = trace_mib_ << 20, .process = cat("galley ", report.recipe, " ", report.what), .machine = machine});
  outcome.json = report_json(report, recorder.recording());
  if (!html_.empty()) outcome.html = report_html(report, recorder.recording());
  if (overhead_s_ > 0) outcome.overhead = recording_overhead(work, overhead_s_, stopped);
  return !stopped();
}

void ProfileTool::write_files(const Outcome& outcome) const {
  if (!output_.empty()) {
    const Trace& trace = outcome.trace;
    write_maybe_gzip(output_, trace.json);
    log(LogLevel::kInfo, cat("trace ", output_, ": ", counted(trace.events, "operator"),
                             trace.dropped > 0 ? cat(", the ", human_count(trace.dropped), " shortest left out") : ""));
  }
  if (!html_.empty()) write_file(html_, outcome.html);
  if (apply_.empty()) return;
  const std::string fragment = advice_fragment(outcome.report.advice);
  write_file(apply_,
             fragment.empty() ? "# galley-profile has no advice that sets a key.\n{}\n" : "# Advice of galley-profile.\n" + fragment);
}

std::optional<RoundComparison> ProfileTool::verified(const LoadedRecipe& loaded, const std::vector<Advice>& advice) const {
  if (!verify_) return std::nullopt;
  if (std::any_of(advice.begin(), advice.end(), [](const Advice& item) { return !item.value.empty() && !item.requantize; }))
    return verify(loaded, advice);
  log(LogLevel::kInfo,
      advice_fragment(advice).empty()
          ? "--verify: no advice sets a key, so there is nothing to compare"
          : "--verify: the advice is for galley-quantize: compare the file that it makes, with galley-benchmark --compare");
  return std::nullopt;
}

Json ProfileTool::json(const Recipe& recipe, const Outcome& outcome) const {
  Json json = Json::parse(outcome.json);
  const Trace& trace = outcome.trace;
  if (!output_.empty())
    json["trace"] = {{"file", output_}, {"events", trace.events}, {"dropped_events", trace.dropped}, {"dropped_ms", trace.dropped_s * 1e3}};
  if (outcome.verified) json["verified"] = verified_json(*outcome.verified, outcome.report.profile);
  if (outcome.overhead) json["overhead"] = comparison_json(*outcome.overhead);
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));
  return json;
}

void ProfileTool::print_outcome(const Recipe& recipe, const Outcome& outcome) const {
  const std::string json_text = json(recipe, outcome).dump() + "\n";
  const size_t most = rows_ == 0 ? SIZE_MAX : static_cast<size_t>(rows_);
  const auto rows = [&](Format format) { return render(operator_table(outcome.report.profile, group_of(by_), most), format); };
  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? json_text : rows(format));
  print(common.format == Format::kJson ? json_text : common.format == Format::kTable ? text(outcome) : rows(common.format));
}

int ProfileTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  if (!dry_run_) check_outputs({output_, html_, apply_});
  make_paths_absolute(recipe);
  Outcome outcome;
  ProfileReport& report = outcome.report;
  const MachineWatch watch;
  {
    ProfiledWork work(recipe);
    report.recipe = recipe.name.empty() ? recipe_ : recipe.name;
    report.what = work.kind() == WorkKind::kTrainStep ? "train_step" : "forward";
    report.batch = work.batch();
    report.threads = work.threads();
    report.synthetic = work.synthetic();
    report.compilations = work.compilations();
    if (dry_run_) {
      print_fits(recipe, report);
      return kExitDone;
    }
    if (!measure(recipe, watch, work, outcome)) return 128 + stop_signal();
  }
  write_files(outcome);
  outcome.verified = verified(loaded, report.advice);
  if (outcome.verified && stopped()) return 128 + stop_signal();
  for (const std::string& remark : report.remarks) log(LogLevel::kWarning, remark);
  print_outcome(recipe, outcome);
  return kExitDone;
}

}  // namespace galley::tools
