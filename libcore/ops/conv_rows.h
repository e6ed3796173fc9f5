#pragma once
// Convolutions of images of which only the first of each sample are valid: features of the regions of detectors, whose number depends on
// the image. For predictions: they have no gradients.

#include "libcore/ops/conv.h"

namespace galley {

const OpDef& conv2d_rows_op();
const OpDef& conv2d_backward_data_rows_op();

/// x [N*R,C,H,W], weight, bias or absent, count i64 [N] -> activation(conv2d(x, weight) + bias) of the first count[n] of the R images of
/// each sample, and 0 of the others, which cost nothing.
Value conv2d_rows(Value x, Value weight, Value bias, Value count, const Conv2dAttrs& attrs);
/// The same of a transposed convolution (conv2d_backward_data).
Value conv2d_backward_data_rows(Value x, Value weight, Value count, const Conv2dBackwardDataAttrs& attrs);

}  // namespace galley
