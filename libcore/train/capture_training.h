#pragma once
// Captures a recipe's model for training.

#include "libcore/infer/session.h"

namespace galley {

/// Captures the forward pass with the scalar output "loss" for batches of these types. Parameters that train.freeze selects are not
/// trainable, with `lora` only adapters and lora.train are. Throws (kRecipe) if no trainable parameter remains, and for selectors that
/// match nothing.
CapturedModel capture_training(const Session& session, const BatchTypes& types);

}  // namespace galley
