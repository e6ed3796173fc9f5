#pragma once
// Trials of quantization in a journal, so that an interrupted search or sensitivity analysis goes on where it was.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "libcore/quantize/quantization_search.h"
#include "tools/common/journal.h"

namespace galley::tools {

/// {"setting","float_layers","activations","weights","sqnr_db","metrics","latency_ms","bytes","quantized_layers"}
nlohmann::ordered_json trial_json(const Trial& trial);
Trial trial_of_json(const nlohmann::ordered_json& json);

/// Finds and adds trials in a journal, and stops at a signal. The journal must outlive the hooks.
TrialHooks journaled(Journal& journal);

/// What the results of trials depend on: everything that the recipe says but its goal, the weights, and `kind` ("search", "sensitivity").
std::string trials_command(const Recipe& recipe, ModelQuantizer& quantizer, const std::string& kind);

}  // namespace galley::tools
