#pragma once
// Reverse-mode differentiation: adds the backward graph by the operators' gradient rules (vector-Jacobian products).

#include <map>
#include <span>

#include "libcore/graph/graph.h"

namespace galley {

/// Appends nodes (Phase::kBackward, with the forward nodes' paths) that compute the gradient of the scalar `objective` with respect to
/// each value in `wanted`. The gradients of a value that several nodes read are summed. Nothing is emitted for values that do not depend on
/// any of `wanted`, or only through operators that stop gradients. A value on which the objective does not depend has no entry in the
/// result.
std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId objective, std::span<const ValueId> wanted);

}  // namespace galley
