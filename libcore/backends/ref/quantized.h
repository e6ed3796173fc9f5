#pragma once
// What becomes of an integer sum, in double: for references of quantized convolutions in other forms.

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/quantized.h"

namespace galley {

/// The result at index i, of output channel o, of a sum of products (a whole number; what would not fit 32 bits is our bug).
double finished_product(const RefCall& call, const QuantizedConv2dAttrs& attrs, double sum, int64_t i, int64_t o);

}  // namespace galley
