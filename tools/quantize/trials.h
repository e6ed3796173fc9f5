#pragma once
// Trials of quantization in a journal, so that an interrupted search or sensitivity analysis goes on where it was.

#include <string>

#include "libcore/quantize/quantization_search.h"
#include "tools/common/journal.h"

namespace galley::tools {

/// Finds and adds trials in a journal, and stops at a signal. The journal must outlive the hooks.
TrialHooks journaled(Journal& journal);

/// What the results of trials depend on: everything that the recipe says but its goal, the weights, and `kind` ("search", "sensitivity").
std::string trials_command(const Recipe& recipe, ModelQuantizer& quantizer, const std::string& kind);

}  // namespace galley::tools
