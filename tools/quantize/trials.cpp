#include "tools/quantize/trials.h"

#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/quantize/quantization_report.h"
#include "libcore/recipe/recipe.h"
#include "tools/common/provenance.h"
#include "tools/common/signals.h"

namespace galley::tools {

TrialHooks journaled(Journal& journal) {
  const auto key = [](const TrialSetting& setting, const TrialQuestions& asked) {
    return cat(setting.key(), "|", asked.sqnr ? "sqnr " : "", asked.metrics ? "metrics " : "", asked.latency ? "latency" : "");
  };
  TrialHooks hooks;
  hooks.find = [&journal, key](const TrialSetting& setting, const TrialQuestions& questions) -> std::optional<Trial> {
    const nlohmann::ordered_json* known = journal.find(key(setting, questions));
    if (known == nullptr) return std::nullopt;
    try {
      return trial_of_json(*known);
    } catch (const nlohmann::json::exception&) {
      return std::nullopt;  // a damaged line: it is tried again
    }
  };
  hooks.add = [&journal, key](const Trial& trial) { journal.add(key(trial.setting, trial.asked), trial_json(trial)); };
  hooks.stop = [] { return stop_signal() != 0; };
  return hooks;
}

std::string trials_command(const Recipe& recipe, ModelQuantizer& quantizer, const std::string& kind) {
  Recipe same = recipe;
  same.quantize.goal.reset();
  std::string text = cat(kind, "\n", dump_recipe(same, DumpKind::kFull));
  for (const auto& [name, digest] : parameter_digests(quantizer.parameters(), quantizer.store())) text += cat("\n", name, " ", digest);
  return sha256_hex(text);
}

}  // namespace galley::tools
