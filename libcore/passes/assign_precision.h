#pragma once
// Mixed precision: activations and the weights of products in bf16; parameters, statistics, losses and updates in f32 (Micikevicius et al.,
// "Mixed precision training", 2018; bf16 needs no loss scaling).

#include <functional>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

struct PrecisionPolicy {
  DType compute = DType::kF32;                     ///< kBF16: mixed precision; kF32: nothing changes
  bool biases = false;                             ///< Biases of products too, as the libraries of GPUs want them.
  std::function<bool(const Node& node)> keep_f32;  ///< Nodes that compute in f32 in spite of their operator's rule; may be empty.
};

/// Casts inputs of nodes to the dtype that the operators' rules (PrecisionRule) name, and infers all types again. Runs on a forward graph,
/// before `differentiate`. Results of the graph stay f32. The report lists products in low precision as done, and products that stay in f32
/// as declined.
PassReport assign_precision(Graph& graph, const PrecisionPolicy& policy);

}  // namespace galley
