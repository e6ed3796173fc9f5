#pragma once
// Batches of random values, for work that is timed without data.

#include "libcore/infer/session.h"
#include "libcore/tensor/batch.h"

namespace galley {

/// Random values: floats in -1 .. 1, class indices among the classes of the task's targets. A pure function of the types.
Batch random_batch(const Session& session, const BatchTypes& types);

}  // namespace galley
