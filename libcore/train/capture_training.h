#pragma once
// A recipe's model as it is trained.

#include "libcore/infer/session.h"

namespace galley {

/// Forward pass and scalar output "loss" for batches of those types; what train.freeze selects is not trainable. Throws (kRecipe) where
/// nothing is left to be trained, and for selectors that match nothing.
CapturedModel capture_training(const Session& session, const BatchTypes& types);

}  // namespace galley
