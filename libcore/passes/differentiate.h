#pragma once
// Reverse-mode differentiation: adds the backward graph by the operators' vector-Jacobian rules, never building a Jacobian.

#include <map>
#include <span>

#include "libcore/graph/graph.h"

namespace galley {

/// Appends nodes (Phase::kBackward, with the forward nodes' paths) that compute the gradient of the scalar `objective` with respect to
/// each of `wanted`. Contributions to a value that is used several times are summed before they flow on; nothing is built for values
/// that lead to none of `wanted`, or only through operators that stop gradients. A wanted value that the objective does not depend on has
/// no entry in the result.
std::map<ValueId, ValueId> differentiate(Graph& graph, ValueId objective, std::span<const ValueId> wanted);

}  // namespace galley
