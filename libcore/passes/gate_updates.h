#pragma once
// Gates of updates: a step whose loss is not finite changes nothing.

#include <string>

#include "libcore/graph/graph.h"

namespace galley {

/// Every update of parameters and state gets one gate, which is true as long as `value` (the loss) has been finite in every run. `state`:
/// name of the state (bool []) that records that it was not; the programs of a training share it. Moves updates after all other nodes and
/// keeps their order; order_updates places them.
void gate_updates(Graph& graph, ValueId value, const std::string& state);

}  // namespace galley
