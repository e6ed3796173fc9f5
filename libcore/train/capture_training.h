#pragma once
// Captures a recipe's model for training.

#include <optional>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/optim/optimizer.h"
#include "libcore/passes/loss_scale.h"

namespace galley {

/// Captures the forward pass with the scalar output "loss" for batches of these types. Parameters that train.freeze selects are not
/// trainable, with `lora` only adapters and lora.train are. Throws (kRecipe) if no trainable parameter remains, and for selectors that
/// match nothing. Running statistics have the dtype that precision.buffers names.
CapturedModel capture_training(const Session& session, const BatchTypes& types);

/// The dtype of running statistics where precision.buffers asks for another one than f32.
std::optional<DType> narrow_buffer_dtype(const Recipe& recipe);

/// How the loss is scaled by precision.compute and precision.loss_scale; empty: not at all.
std::optional<LossScaling> loss_scaling(const Recipe& recipe);

/// The optimizer settings of each trained parameter. Each key comes from the first matching group that sets it. Quantization scales
/// (`scales`) have no weight decay.
ParameterGroups parameter_groups(const OptimizerSection& section, const std::vector<ParameterSpec>& parameters,
                                 const std::vector<std::string>& scales);

}  // namespace galley
