#pragma once
// Operators that compute what another operator does with other operands or results: those of rewrites, for ops and back ends.

#include <initializer_list>

#include "libcore/graph/op_def.h"

namespace galley {

/// What holds of such an operator too: ports, attributes, cost, work, layout, precision and state. It is of real values, has no gradient
/// (`no_gradient`: why), no cases, and its results take the memory of no inputs. The caller sets infer and definition, and what differs.
OpDef made_from(const OpDef& op, std::string_view name, std::string_view doc, std::string_view no_gradient);
/// The same for an operator that only a back end's rewrite creates: a variant of `op`.
OpDef rewritten_from(const OpDef& op, std::string_view name, std::string_view doc);

/// Registers operators of back ends after those of ops/registry.h, unless they are. Thread-safe.
void ensure_registered(std::initializer_list<const OpDef*> operators);

}  // namespace galley
