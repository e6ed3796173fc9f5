#pragma once
// Deformable convolution (Dai et al. 2017; modulated: Zhu et al. 2019), as torchvision.ops.deform_conv2d.

#include "libcore/ops/conv.h"

namespace galley {

struct DeformConv2dAttrs : OptionsOf<DeformConv2dAttrs>, Conv2dWindow {
  void options(OptionVisitor& v) override;
};

const OpDef& deform_conv2d_op();

/// A convolution whose taps read x [N,C,H,W] at positions moved by `offset` [N,2*D*kh*kw,H',W'], bilinear, 0 outside the image. Channel
/// 2*(d*kh*kw + tap) of it holds the rows of a tap, the next one its columns; channels of x are divided into D groups, each with offsets
/// of its own. weight [O,C/groups,kh,kw]; bias [O] or absent; mask [N,D*kh*kw,H',W'] or absent: factors of the taps -> [N,O,H',W'].
Value deform_conv2d(Value x, Value offset, Value weight, const DeformConv2dAttrs& attrs, Value bias = {}, Value mask = {});

}  // namespace galley
