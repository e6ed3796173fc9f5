#pragma once
// Activations of a product's result, in place.

#include <cstdint>

#include "libcore/ops/attrs.h"

namespace galley {

/// y[i] = activation(y[i]), by the vector loop of its row; on the calling thread.
void activate(Activation activation, float* y, int64_t count);

}  // namespace galley
