#pragma once
// Gates: a step whose loss is not finite changes nothing.

#include <string>

#include "libcore/graph/graph.h"

namespace galley {

/// Every update of parameters and state reads one gate: true as long as `value` (the loss) has been finite in each run. `state`: name of
/// the state (bool []) that remembers that it was not, shared by the programs of a training. Updates move after all other nodes, in their
/// order; order_updates places them.
void gate_updates(Graph& graph, ValueId value, const std::string& state);

}  // namespace galley
