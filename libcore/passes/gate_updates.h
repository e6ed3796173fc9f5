#pragma once
// Gates of updates: a step whose loss, or whose gradients, are not finite changes nothing.

#include <optional>
#include <string>

#include "libcore/graph/graph.h"
#include "libcore/passes/loss_scale.h"

namespace galley {

struct UpdateGates {
  /// A scalar that must have been finite in every run (the loss); kNoValue: none. `stopped`: name of the state (bool []) that records that
  /// it was not; the programs of a training share it.
  ValueId value = kNoValue;
  std::string stopped;
  /// A scalar that must be finite in this run: the sum of squares of all gradients. kNoValue: none.
  ValueId squares = kNoValue;
  std::optional<LossScaling> scaling;  ///< Updates the factor of the loss by `squares`.
};

/// Every update of parameters and state gets one gate, which is true if the values are finite; updates that have a gate keep it. Moves
/// updates after all other nodes and keeps their order; order_updates places them.
void gate_updates(Graph& graph, const UpdateGates& gates);

/// A gate by the loss alone.
void gate_updates(Graph& graph, ValueId value, const std::string& stopped);

}  // namespace galley
