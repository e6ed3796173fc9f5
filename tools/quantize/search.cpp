// galley-quantize with quantize.goal: trials until it is met at the least price.

#include "libcore/base/counted.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "tools/quantize/quantize.h"
#include "tools/quantize/trials.h"

namespace galley::tools {

void QuantizeTool::search(Session& session, ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration,
                          QuantizationResult& result) const {
  const Recipe& recipe = session.recipe();
  const GoalSection& goal = *recipe.quantize.goal;
  QuantizationTrials trials(session, quantizer, config, calibration);
  Journal journal(journal_path(), trials_command(recipe, quantizer, "search"));
  if (journal.size() > 0)
    log(LogLevel::kInfo, cat(counted(static_cast<int64_t>(journal.size()), "trial"), journal.size() == 1 ? " is in " : " are in ",
                             journal_path(), " already"));
  judge(goal, trials.float_metrics(), {});  // the metric is a number
  int64_t number = 0;
  SearchResult found = search_quantization(session, quantizer, trials, goal, journaled(journal), [&](const SearchTrial& t) {
    log(LogLevel::kInfo, cat("trial ", ++number, ": ", t.trial.setting.text(), ": ", goal.metric, " ",
                             fixed(find_metric(t.trial.metrics, goal.metric), 3), ", loses ", fixed(t.drop, 3), t.met ? " (met), " : ", ",
                             human_seconds(t.trial.latency_s), ", ", human_bytes(static_cast<double>(t.trial.bytes))));
  });
  const SearchTrial& best = found.trials[found.best];
  result.real = trials.float_metrics();
  result.quantized = best.trial.metrics;
  result.model = trials.quantize(best.trial.setting);
  result.float_latency_s = trials.float_latency_s();
  if (found.out_of_time)
    log(LogLevel::kWarning, cat("quantize.goal.time_budget (", goal.time_budget.str(), ") is over; the best trial so far is written"));
  result.search = std::move(found);
}

}  // namespace galley::tools
