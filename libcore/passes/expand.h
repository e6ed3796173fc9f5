#pragma once
// Replaces composite operators by their definitions (OpDef::definition): for transforms that have no rule for a composite, and for back
// ends that have no kernel for it.

#include <functional>
#include <optional>

#include "libcore/graph/graph.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/report.h"
#include "libcore/passes/target.h"

namespace galley {

/// Replaces every composite for which `keep` is false by its definition, and the composites that this emits likewise, until only kept
/// operators and primitives are left. New nodes have the path and the phase of the node that they replace. Updates of state keep their
/// place in the order. Values of replaced nodes are unused afterwards; outputs of the graph refer to the new values. `compute`: the
/// floating dtype of definitions, by default f64 for a node with an f64 operand, else f32; results are cast to the dtypes of the values
/// that they replace. Runs before assign_layout: definitions know no formats. A gradient rule that is not the derivative of the operator
/// (fake_quantize passes gradients straight through rounding) is lost with the operator, so keep such operators if `differentiate` runs
/// later.
PassReport expand(Graph& graph, const std::function<bool(const Node&)>& keep, std::optional<DType> compute = {});

/// Replaces every composite that the target cannot run (Target::refusal) by its definition, and the composites that this emits likewise. If
/// the target cannot run a primitive either, compilation fails and names it. The answer may depend on memory formats, so `layout` must be
/// what assign_layout will get. The report lists what was replaced and why the kernels declined it, unless it has one element.
PassReport expand_unsupported(Graph& graph, const Target& target, const LayoutOptions& layout);

}  // namespace galley
