#pragma once
// Composite operators replaced by their definitions (OpDef::definition): for transforms that have no rule for a composite, and for back
// ends that have no kernel of it.

#include <functional>
#include <optional>

#include "libcore/graph/graph.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/report.h"
#include "libcore/passes/target.h"

namespace galley {

/// Replaces every composite that `keep` does not select by its definition, and what that emits likewise, until only kept operators and
/// primitives are left. New nodes have the path and the phase of the node that they replace; what follows a state's update still does.
/// Values of replaced nodes are read no more: outputs of the graph name the new ones. `compute`: the floating type of definitions; by
/// default f64 for a node that has an f64 operand, else f32. Results are cast to the types of the values they stand for. Runs before
/// assign_layout: definitions know no formats. A rule that is not the slope of what the operator computes (the gradient of fake_quantize
/// passes rounding straight through) is lost with the operator: keep it where a gradient follows.
PassReport expand(Graph& graph, const std::function<bool(const Node&)>& keep, std::optional<DType> compute = {});

/// Replaces every composite that the target refuses (Target::refusal) by its definition, and what that emits likewise. What is refused then
/// is a primitive: compilation ends with an error that names it. A refusal may depend on memory formats: `layout` says how assign_layout
/// will be called. The report lists what was replaced and, under `declined`, why the kernels did not take it.
PassReport expand_unsupported(Graph& graph, const Target& target, const LayoutOptions& layout);

}  // namespace galley
