#include "tools/calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/quant/observers.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/weights/calibration_file.h"
#include "tools/common/output_file.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

constexpr std::array<ObserverType, 6> kObservers{ObserverType::kMinMax,     ObserverType::kMovingAverage, ObserverType::kHistogram,
                                                 ObserverType::kPercentile, ObserverType::kEntropy,       ObserverType::kMse};

/// A number, or "inf", "-inf", "nan" (recipe.md, section 4).
nlohmann::ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::string decibels(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string shortly(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

/// What each observer decides for one value, in the order of kObservers, and which is best.
struct Observed {
  std::array<ObservedRange, kObservers.size()> ranges;
  size_t best = 0;
};

Observed observe_all(const RangeStatistics& statistics, ActivationScheme scheme) {
  Observed observed;
  for (size_t i = 0; i < kObservers.size(); ++i) {
    scheme.observer.type = kObservers[i];
    observed.ranges[i] = observe(statistics, scheme);
    if (observed.ranges[i].sqnr_db > observed.ranges[observed.best].sqnr_db) observed.best = i;
  }
  return observed;
}

}  // namespace

void CalibrateTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_option("--samples", samples_, "number of samples (recipe key data.calibration.samples)")
      .positive()
      .group("Recipe")
      .take_last();
  command.add_flag("--continue", continue_, "continue the file of -o, up to data.calibration.samples in total").group("Recipe");
  command.add_option("--merge", merge_, "merge these files, in this order; the result equals that of a single run")
      .type_name("FILE...")
      .group("Files")
      .expected(1, 1 << 20);
  command
      .add_option("--show", show_,
                  "print the ranges in a file, and what each observer makes of them; with RECIPE: for its quantize.activations")
      .type_name("FILE")
      .group("Files")
      .take_last();
}

int CalibrateTool::run() {
  if (!merge_.empty() && !show_.empty())
    throw Error(ErrorCode::kUsage, "both --merge and --show were given").suggest("merge first, then show what was written");
  if (!merge_.empty()) {
    if (!words_.empty())
      throw Error(ErrorCode::kUsage, cat("--merge takes files alone, and '", words_.front(), "' is none of them"))
          .suggest("galley-calibrate --merge a.calib b.calib -o both.calib");
    return merge();
  }
  if (!show_.empty() && words_.empty()) return show(default_activations(QuantizeSection()));
  if (samples_ > 0) overrides_.push_back(cat("data.calibration.samples=", samples_));
  return RecipeTool::run();
}

int CalibrateTool::run_recipe(LoadedRecipe& loaded) {
  if (!show_.empty()) return show(default_activations(loaded.recipe.quantize));
  return calibrate(loaded);
}

int CalibrateTool::calibrate(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  make_paths_absolute(recipe);
  require_weights(loaded);
  if (!dry_run_) check_output_file(output_, "calibration writes a file", "stats.calib");
  Calibration calibration;
  if (continue_ && !output_.empty() && file_exists(output_)) calibration = read_calibration(output_);
  Session session(recipe);
  Calibrator calibrator(session);
  session.initialize(calibrator.parameters(), calibrator.store());
  const int64_t before = calibration.samples();
  const std::string plan =
      cat(counted(calibrator.samples(), "sample"), " of data.", recipe.data.calibration.from, " in batches of ", calibrator.batch(), ", ",
          calibrator.values(), " values, memory ", human_bytes(static_cast<double>(calibrator.planned_bytes())));
  if (dry_run_) {
    nlohmann::ordered_json json{{"fits", true},
                                {"samples", calibrator.samples()},
                                {"batch", calibrator.batch()},
                                {"values", calibrator.values()},
                                {"planned_peak_bytes", calibrator.planned_bytes()}};
    json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));
    print(common.format == Format::kJson ? json.dump() + "\n" : plan + "\n");
    return kExitDone;
  }
  log(LogLevel::kInfo, plan);
  if (before > 0) log(LogLevel::kInfo, cat("continues ", output_, ", which has ", counted(before, "sample")));
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  {
    Progress progress(common.progress);
    calibrator.run(calibration, [&](int64_t done) {
      const double total = static_cast<double>(calibrator.samples()), rate = static_cast<double>(done - before) / seconds();
      progress.update(
          static_cast<double>(done) / total, cat("samples ", done, "/", calibrator.samples(), "  ", human_number(rate), " per second"),
          nlohmann::ordered_json{{"progress", "calibrate"}, {"samples", done}, {"total", calibrator.samples()}, {"samples_per_s", rate}}
              .dump());
      return stop_signal() == 0;
    });
    progress.clear();
  }
  const double wall_s = seconds();
  if (calibration.samples() > before) write_calibration(output_, calibration);
  const bool stopped = calibration.samples() < calibrator.samples();
  if (stopped)
    log(LogLevel::kWarning, cat("stopped after ", human_count(calibration.samples()), " of ", human_count(calibrator.samples()),
                                " samples; the same command with --continue goes on"));
  return report(calibration, wall_s, stopped ? kExitResumable : kExitDone);
}

int CalibrateTool::merge() {
  check_output_file(output_, "--merge writes a file", "stats.calib");
  Calibration all = read_calibration(merge_.front());
  for (size_t i = 1; i < merge_.size(); ++i) {
    const Calibration other = read_calibration(merge_[i]);
    for (const CalibrationPart& part : other.parts) {
      if (std::find(all.parts.begin(), all.parts.end(), part) != all.parts.end()) {
        log(LogLevel::kWarning,
            cat(merge_[i], " has samples that are there already (", part.samples, " from position ", part.first, "): they count twice"));
      }
    }
    all.merge(other, merge_[i]);
  }
  write_calibration(output_, all);
  return report(all, 0, kExitDone);
}

int CalibrateTool::report(const Calibration& calibration, double wall_s, int exit_code) const {
  nlohmann::ordered_json json{
      {"file", output_}, {"samples", calibration.samples()}, {"batches", calibration.batches()}, {"values", calibration.values.size()}};
  json["parts"] = nlohmann::ordered_json::array();
  for (const CalibrationPart& part : calibration.parts)
    json["parts"].push_back({{"samples", part.samples}, {"batches", part.batches}, {"first", part.first}, {"data", part.data}});
  json["model"] = calibration.model;
  json["wall_s"] = wall_s;
  Provenance who{.tool = name(), .overrides = overrides_};
  if (!calibration.recipe.empty()) who.recipe_sha256 = sha256_hex(calibration.recipe);
  json["provenance"] = provenance_json(who);
  Table table{{"file", "samples", "batches", "parts", "values", "seconds"},
              {{output_, cat(calibration.samples()), cat(calibration.batches()), cat(calibration.parts.size()),
                cat(calibration.values.size()), human_number(wall_s)}}};
  save_and_print(json.dump() + "\n", table);
  return exit_code;
}

int CalibrateTool::show(const ActivationScheme& scheme) {
  const Calibration calibration = read_calibration(show_);
  const std::vector<std::string>& names = calibration.order;
  std::vector<Observed> observed(names.size());
  parallel_for(static_cast<int64_t>(names.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::string& value = names[static_cast<size_t>(i)];
      try {
        observed[static_cast<size_t>(i)] = observe_all(calibration.at(value), scheme);
      } catch (Error& error) {
        throw error.context(cat(", at ", value, " in ", show_));
      }
    }
  });
  Table table{{"value", "min", "max"}, {}};
  for (const ObserverType type : kObservers) table.headings.push_back(cat(observer_name(type), " dB"));
  for (const char* heading : {"best", "scale", "zero point"}) table.headings.emplace_back(heading);
  nlohmann::ordered_json json{{"file", show_},
                              {"samples", calibration.samples()},
                              {"batches", calibration.batches()},
                              {"dtype", kQuantDTypeNames[static_cast<size_t>(scheme.dtype)]},
                              {"scheme", scheme.symmetric ? "per_tensor_symmetric" : "per_tensor_affine"},
                              {"reduce_range", scheme.reduce_range}};
  json["values"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < names.size(); ++i) {
    const RangeStatistics& statistics = calibration.at(names[i]);
    const BatchRange range = statistics.range();
    const ObservedRange& best = observed[i].ranges[observed[i].best];
    std::vector<std::string> row{names[i], shortly(range.min), shortly(range.max)};
    nlohmann::ordered_json value{{"name", names[i]},
                                 {"min", range.min},
                                 {"max", range.max},
                                 {"elements", statistics.elements()},
                                 {"stride", statistics.stride()},
                                 {"best", observer_name(best.observer)}};
    for (const ObservedRange& each : observed[i].ranges) {
      row.push_back(decibels(each.sqnr_db));
      value["observers"][std::string(observer_name(each.observer))] = {{"min", each.min},
                                                                       {"max", each.max},
                                                                       {"scale", each.params.scale},
                                                                       {"zero_point", each.params.zero_point},
                                                                       {"sqnr_db", number_json(each.sqnr_db)}};
    }
    row.insert(row.end(), {std::string(observer_name(best.observer)), shortly(best.params.scale), cat(best.params.zero_point)});
    table.rows.push_back(std::move(row));
    json["values"].push_back(std::move(value));
  }
  json["provenance"] = provenance_json(
      {.tool = name(), .recipe_sha256 = calibration.recipe.empty() ? "" : sha256_hex(calibration.recipe), .overrides = overrides_});
  save(json.dump() + "\n", table);
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
    return kExitDone;
  }
  log(LogLevel::kInfo,
      cat(counted(calibration.samples(), "sample"), " in ", counted(calibration.batches(), "batch"), "; SQNR in dB of each observer for ",
          kQuantDTypeNames[static_cast<size_t>(scheme.dtype)], scheme.symmetric ? " symmetric" : " affine"));
  if (!calibration.weight_bounds.empty())
    log(LogLevel::kInfo, cat("besides, the learned scales of ", calibration.weight_bounds.size(), " weights"));
  print(table);
  return kExitDone;
}

}  // namespace galley::tools
