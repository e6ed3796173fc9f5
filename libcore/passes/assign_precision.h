#pragma once
// Mixed precision: activations and the weights they meet in a narrower type, parameters, statistics, losses and updates in f32
// (Micikevicius et al., "Mixed precision training", 2018; bf16 needs no loss scale).

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

struct PrecisionPolicy {
  DType compute = DType::kF32;                     ///< kBF16: mixed precision; kF32: nothing changes
  std::function<bool(const Node& node)> keep_f32;  ///< Nodes that compute in f32 whatever their operator's rule says; may be empty.
};

/// Casts inputs of a forward graph (nothing differentiated yet) where the operators' rules (PrecisionRule) ask for another type, and infers
/// all types again. Results of the graph stay f32. What the report lists as done are the products in low precision, as declined those that
/// stay in f32.
PassReport assign_precision(Graph& graph, const PrecisionPolicy& policy);

}  // namespace galley
