// galley-quantize with quantize.goal: trials until it is met at the least price.

#include <nlohmann/json.hpp>

#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "tools/quantize/metrics_text.h"
#include "tools/quantize/quantize.h"
#include "tools/quantize/trials.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void QuantizeTool::search(Session& session, ModelQuantizer& quantizer, const QuantizeConfig& config, const Calibration* calibration, Result& result) const {
  const Recipe& recipe = session.recipe();
  const GoalSection& goal = *recipe.quantize.goal;
  QuantizationTrials trials(session, quantizer, config, calibration);
  Journal journal(journal_path(), trials_command(recipe, quantizer, "search"));
  if (journal.size() > 0) log(LogLevel::kInfo, cat(journal.size(), " trials are in ", journal_path(), " already"));
  judge(goal, trials.float_metrics(), {});  // the metric is one that the evaluation gives
  int64_t number = 0;
  SearchResult found = search_quantization(session, quantizer, trials, goal, journaled(journal), [&](const SearchTrial& t) {
    log(LogLevel::kInfo, cat("trial ", ++number, ": ", t.trial.setting.text(), ": ", goal.metric, " ", fixed(find_metric(t.trial.metrics, goal.metric), 3), ", loses ", fixed(t.drop, 3), t.met ? " (met), " : ", ",
                             human_seconds(t.trial.latency_s), ", ", human_bytes(static_cast<double>(t.trial.bytes))));
  });
  const SearchTrial& best = found.trials[found.best];
  result.real = trials.float_metrics();
  result.quantized = best.trial.metrics;
  result.model = trials.quantize(best.trial.setting);
  result.float_latency_s = trials.float_latency_s();
  if (found.out_of_time) log(LogLevel::kWarning, cat("quantize.goal.time_budget (", goal.time_budget.str(), ") is over; the best trial so far is written"));
  result.search = std::move(found);
}

Table QuantizeTool::trial_table(const Result& result, const std::string& metric) {
  Table table{{"trial", metric, "loses", "ms", "MiB", "met", "pareto"}, {}};
  const SearchResult& search = *result.search;
  table.rows.push_back({"float", fixed(find_metric(result.real, metric), 3), "", fixed(1e3 * result.float_latency_s, 3), fixed(static_cast<double>(result.bytes_float) / (1 << 20), 3), "", ""});
  for (size_t i = 0; i < search.trials.size(); ++i) {
    const SearchTrial& t = search.trials[i];
    table.rows.push_back({t.trial.setting.text() + (i == search.best ? " (written)" : ""), fixed(find_metric(t.trial.metrics, metric), 3), fixed(t.drop, 3), fixed(1e3 * t.trial.latency_s, 3),
                          fixed(static_cast<double>(t.trial.bytes) / (1 << 20), 3), t.met ? "yes" : "no", t.pareto ? "*" : ""});
  }
  return table;
}

Json QuantizeTool::search_json(const SearchResult& search) {
  Json json = Json::array();
  for (size_t i = 0; i < search.trials.size(); ++i) {
    const SearchTrial& t = search.trials[i];
    Json row = trial_json(t.trial);
    row.erase("sqnr_db");
    row["drop"] = number_json(t.drop);
    row["met"] = t.met;
    row["pareto"] = t.pareto;
    row["written"] = i == search.best;
    json.push_back(std::move(row));
  }
  return json;
}

}  // namespace galley::tools
