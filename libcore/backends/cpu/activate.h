#pragma once
// Activations behind a product, in place.

#include <cstdint>

#include "libcore/ops/attrs.h"

namespace galley {

/// y[i] = activation(y[i]), by vector_math.h; on the calling thread.
void activate(Activation activation, float* y, int64_t count);

}  // namespace galley
