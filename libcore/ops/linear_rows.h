#pragma once
// Linear layers of rows of which only the first of each sample are valid: the regions of detectors, whose number depends on the image.

#include "libcore/ops/matmul.h"

namespace galley {

const OpDef& linear_rows_op();

/// x [N,R,I], weight [O,I], bias [O] or absent, count i64 [N] -> activation(x weight^T + bias) [N,R,O] in the first count[n] rows of each
/// sample, and 0 in the others, which cost nothing. For predictions: it has no gradient.
Value linear_rows(Value x, Value weight, Value bias, Value count, const LinearAttrs& attrs = {});

}  // namespace galley
