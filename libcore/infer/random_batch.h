#pragma once
// Batches of random values, for timing without data.

#include "libcore/infer/session.h"
#include "libcore/tensor/batch.h"

namespace galley {

/// A batch of random values: floats in -1..1, class indices below the number of classes of the task's targets. Depends only on the types.
Batch random_batch(const Session& session, const BatchTypes& types);

}  // namespace galley
