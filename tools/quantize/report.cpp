// What galley-quantize prints, and its exit code.

#include <nlohmann/json.hpp>

#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/profiler/machine_limits.h"
#include "libcore/recipe/recipe.h"
#include "tools/quantize/quantize.h"

namespace galley::tools {

int QuantizeTool::report(const Recipe& recipe, const QuantizationResult& result) const {
  const ConvertReport& nodes = result.model.conversion;
  const MachineLimits limits = result.times.empty() ? MachineLimits() : machine_limits(compute_threads());
  const Table layers = layer_table(result, limits);
  nlohmann::ordered_json json = quantization_json(result, limits);
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));
  const SearchTrial* reached = result.search ? &result.search->trials[result.search->best] : nullptr;

  save(json.dump() + "\n", layers);
  for (const auto& [op, count] : nodes.float_operators) log(LogLevel::kInfo, cat("in float: ", count, " x ", op));
  for (const std::string& line : nodes.nodes) log(LogLevel::kDebug, line);
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
  } else if (common.format == Format::kCsv) {
    print(layers);
  } else {
    const std::string trials = reached != nullptr ? "\n" + render(trial_table(result, recipe.quantize.goal->metric), common.format) : "";
    print(render(layers, common.format) + "\n" + render(total_table(result), common.format) + trials);
  }
  if (result.search && result.search->stopped) {
    log(LogLevel::kWarning, cat("stopped: the best trial so far was written; the same command continues with ", journal_path()));
    return kExitResumable;
  }
  if (reached != nullptr && !reached->met) {
    log(LogLevel::kWarning,
        cat("the goal is missed: ", recipe.quantize.goal->metric, " is ",
            human_number(find_metric(result.quantized, recipe.quantize.goal->metric)), ", ",
            human_number(find_metric(result.real, recipe.quantize.goal->metric)), " in float; the best that was found was written"));
    return kExitGoalMissed;
  }
  return kExitDone;
}

}  // namespace galley::tools
