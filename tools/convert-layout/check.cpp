// The layout check: galley-convert-layout --check RECIPE.
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/train/layout_check.h"
#include "tools/common/progress.h"
#include "tools/common/signals.h"
#include "tools/convert-layout/convert_layout.h"

namespace galley::tools {

int ConvertLayoutTool::run_recipe(LoadedRecipe& loaded) {
  if (!dry_run_) check_outputs({apply_});
  make_paths_absolute(loaded.recipe);
  const BenchmarkSection& section = loaded.recipe.benchmark;
  if (section.stop.max_time.unit != DurationUnit::kSeconds)
    throw Error(ErrorCode::kRecipe, "benchmark.stop.max_time is a time").key("benchmark.stop.max_time").suggest("e.g. 30s");
  LayoutCheckOptions options{.batch = parse_count(section.batch.front()), .measure = !dry_run_};
  options.timing = {.relative_error = section.stop.ci.percent / 100,
                    .min_runs = section.stop.min_runs,
                    .max_time_s = section.stop.max_time.value,
                    .stop = [] { return stop_signal() != 0; }};
  const MachineWatch watch;
  Progress progress(common.verbosity < 0 ? ProgressMode::kNone : common.progress);
  options.progress = [&](double done, const std::string& next) {
    progress.update(done, next, nlohmann::json{{"done", done}, {"next", next}}.dump());
  };
  const std::optional<LayoutCheck> check = check_layouts(loaded.recipe, options);
  progress.clear();
  if (!check) return 128 + stop_signal();
  nlohmann::ordered_json json = layout_json(*check);
  const Table costs = layout_cost_table(*check);
  if (check->measured) {
    const std::vector<std::string> remarks = watch.remarks(compute_threads());
    json["remarks"] = remarks;
    for (const std::string& remark : remarks) log(LogLevel::kWarning, remark);
    if (!apply_.empty())
      write_file(apply_, cat("# galley-convert-layout --check ", recipe_,
                             ": the fastest format on this machine\nmemory_format: ", check->best, "\n"));
  }
  json["provenance"] = provenance_json(provenance(loaded.recipe, dump_recipe(loaded.recipe, DumpKind::kFull)));
  save(json.dump() + "\n", costs);
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
    return kExitDone;
  }
  std::string text = values_ ? render(layout_activation_table(*check), common.format) + "\n" : "";
  text += render(costs, common.format) + layout_verdict(*check);
  const Table lost = layout_loss_table(*check), better = layout_convolution_table(*check);
  if (!lost.rows.empty()) text += "\nwhere channels_last is lost (auto):\n" + render(lost, common.format);
  if (!better.rows.empty()) text += "\nconvolutions that are faster contiguous:\n" + render(better, common.format);
  if (!check->best.empty()) text += cat("fastest: memory_format: ", check->best, "\n");
  print(text);
  return kExitDone;
}

}  // namespace galley::tools
