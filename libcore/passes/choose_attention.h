#pragma once
// Chooses how attention is computed (AttentionAlgorithm in ops/attention.h).

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"
#include "libcore/passes/target.h"

namespace galley {

enum class AttentionStage : uint8_t {
  kForward,  // before `differentiate`
  kCompile,  // a complete graph, before assign_layout
};

/// Resolves the algorithm auto of each attention: what the target's attention() names; if that is auto too, flash where the target has a
/// kernel, else math, or memory_efficient where the scores of one operator take more than 64 MiB. Then replaces what has the algorithm math
/// by its definition, at kForward so that `differentiate` stores the probabilities; at kCompile also what has the algorithm
/// memory_efficient. The report has a line for each choice, with its reason. Throws Error (kRecipe) where the algorithm of a node is not
/// possible: flash without a kernel, memory_efficient with dropout.
PassReport choose_attention(Graph& graph, const Target& target, AttentionStage stage);

}  // namespace galley
