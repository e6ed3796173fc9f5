#pragma once
// Loss scaling: the objective is multiplied by a factor, so that gradients in f16 do not become 0, and the gradients are divided by it
// (Micikevicius et al., "Mixed precision training", 2018). The factor is state of the graph: an update whose gradients are not finite
// changes nothing and halves it; it doubles after many finite ones, as in torch.amp.GradScaler.

#include <string>

#include "libcore/graph/graph.h"

namespace galley {

struct LossScaling {
  double initial = 65536;
  bool dynamic = true;      ///< false: the factor stays as it is.
  int64_t interval = 2000;  ///< Finite updates until it doubles.
};

/// States, all []: the factor (f32), the finite updates since it last changed, and the updates that were not skipped (i64).
inline constexpr const char *kLossScale = "train.loss_scale", *kLossScaleAge = "train.loss_scale.age",
                            *kAppliedUpdates = "train.loss_scale.applied_updates";
/// The largest factor.
inline constexpr double kLargestLossScale = 16777216;

/// A scalar state of loss scaling; the first call for a name declares it.
Value loss_scale_state(Graph& graph, const char* name);

/// The objective: loss times the factor.
ValueId scaled_loss(Graph& graph, ValueId loss);

/// Appends the updates of the three states. `finite`: whether all gradients are, bool []; `gate`: of the updates, or none.
void update_loss_scale(Graph& graph, Value finite, Value gate, const LossScaling& scaling);

}  // namespace galley
