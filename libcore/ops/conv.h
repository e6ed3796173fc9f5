#pragma once
// Convolution over two axes (images) and three (videos, volumes), each with its two backward operators.

#include "libcore/ops/attrs.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// The window of a convolution: each option is one number for all axes, or one for each: [depth,] rows, columns.
struct Conv2dWindow {
  std::vector<int64_t> stride{1};
  std::vector<int64_t> padding{0};
  std::vector<int64_t> dilation{1};
  int64_t groups = 1;
};
/// Visits the options of the window.
void window_options(OptionVisitor& v, Conv2dWindow& window);

struct Conv2dAttrs : OptionsOf<Conv2dAttrs>, Conv2dWindow {
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};
struct Conv2dBackwardDataAttrs : OptionsOf<Conv2dBackwardDataAttrs>, Conv2dWindow {
  std::vector<int64_t> input_size;  // [depth,] rows and columns of the forward input
  void options(OptionVisitor& v) override;
};
struct Conv2dBackwardWeightsAttrs : OptionsOf<Conv2dBackwardWeightsAttrs>, Conv2dWindow {
  std::vector<int64_t> kernel_size;  // [depth,] rows and columns of the weight
  void options(OptionVisitor& v) override;
};

/// [N,O,H',W'] for x [N,C,H,W] and weight [O,C/groups,kh,kw]; [N,O,D',H',W'] for x [N,C,D,H,W] and weight [O,C/groups,kd,kh,kw]. Throws,
/// with both shapes, if they do not fit.
Shape conv_shape(const Conv2dWindow& window, const Shape& x, const Shape& weight);

const OpDef& conv2d_op();
const OpDef& conv2d_backward_data_op();
const OpDef& conv2d_backward_weights_op();
/// The same over three axes, with the same attributes.
const OpDef& conv3d_op();
const OpDef& conv3d_backward_data_op();
const OpDef& conv3d_backward_weights_op();

/// x [N,C,H,W], weight [O,C/groups,kh,kw], bias [O] or absent, residual [N,O,H',W'] or absent -> activation(conv + bias + residual)
/// [N,O,H',W'], H' = (H + 2 padding - dilation (kh-1) - 1) / stride + 1. Has a gradient only without
/// activation and residual: only fusion for inference adds these.
Value conv2d(Value x, Value weight, Value bias, const Conv2dAttrs& attrs, Value residual = {});
/// Gradient of the input: grad [N,O,H',W'], weight -> [N,C,H,W], plus `residual` of that shape if it is given.
Value conv2d_backward_data(Value grad, Value weight, const Conv2dBackwardDataAttrs& attrs, Value residual = {});
/// Gradient of the weight: x [N,C,H,W], grad [N,O,H',W'] -> [O,C/groups,kh,kw], contiguous unless assign_layout chooses another format.
Value conv2d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs);

/// x [N,C,D,H,W], weight [O,C/groups,kd,kh,kw], bias [O] or absent, residual [N,O,D',H',W'] or absent: as conv2d.
Value conv3d(Value x, Value weight, Value bias, const Conv2dAttrs& attrs, Value residual = {});
/// As conv2d_backward_data and conv2d_backward_weights.
Value conv3d_backward_data(Value grad, Value weight, const Conv2dBackwardDataAttrs& attrs, Value residual = {});
Value conv3d_backward_weights(Value x, Value grad, const Conv2dBackwardWeightsAttrs& attrs);

}  // namespace galley
