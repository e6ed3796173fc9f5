#pragma once
// Operators of optical flow (Teed, Deng 2020, "RAFT: Recurrent All-Pairs Field Transforms for Optical Flow").

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct CorrelationLookupAttrs : OptionsOf<CorrelationLookupAttrs> {
  int64_t radius = 4;
  void options(OptionVisitor& v) override;
  /// Values of a level: a square of 2 * radius + 1 pixels.
  int64_t per_level() const { return (2 * radius + 1) * (2 * radius + 1); }
};
struct CorrelationLookupBackwardAttrs : OptionsOf<CorrelationLookupBackwardAttrs> {
  int64_t radius = 4;
  int64_t level = 0;                // the one whose gradient it is
  std::vector<int64_t> input_size;  // its rows and columns
  void options(OptionVisitor& v) override;
};
struct ConvexUpsampleAttrs : OptionsOf<ConvexUpsampleAttrs> {
  int64_t factor = 8;
  void options(OptionVisitor& v) override;
};

const OpDef& detach_op();
const OpDef& correlation_lookup_op();
const OpDef& correlation_lookup_backward_first_op();
const OpDef& correlation_lookup_backward_level_op();
const OpDef& convex_upsample_op();
const OpDef& convex_upsample_backward_op();

/// x, as a constant for differentiation.
Value detach(Value x);

/// How well features of the first image agree with those of the second near the point to which each pixel moves. flow [N,2,H,W] (x, y, in
/// pixels), first [N,C,H,W], levels: features of the second image [N,C,H_l,W_l], level l with a pixel for 2^l x 2^l pixels
/// -> [N,L*(2*radius+1)^2,H,W]. Value (l, i, j) of the pixel (x, y) is the dot product, divided by sqrt(C), of its features and of level l
/// at ((x + flow_x) / 2^l + i - radius, (y + flow_y) / 2^l + j - radius), bilinear and 0 outside. So the products of all pairs of pixels
/// are never stored. The flow has no gradient. A flow that is NaN gives NaN.
Value correlation_lookup(Value flow, Value first, const std::vector<Value>& levels, const CorrelationLookupAttrs& attrs = {});
/// The gradient of `first`.
Value correlation_lookup_backward_first(Value grad, Value flow, const std::vector<Value>& levels, const CorrelationLookupAttrs& attrs);
/// The gradient of a level, [N,C,input_size].
Value correlation_lookup_backward_level(Value grad, Value flow, Value first, const CorrelationLookupBackwardAttrs& attrs);

/// Resizes a flow by `factor`: each fine pixel is a convex combination of the 3x3 coarse pixels around its own, times the factor. flow
/// [N,C,H,W], mask [N,9*factor^2,H,W] with logits (k, a, b) of neighbor k (row by row) for the fine pixel in row a, column b of the coarse
/// one -> [N,C,factor*H,factor*W]. Neighbors outside are 0.
Value convex_upsample(Value flow, Value mask, const ConvexUpsampleAttrs& attrs = {});
/// The gradients of flow and mask.
struct ConvexUpsampleGradients {
  Value flow, mask;
};
ConvexUpsampleGradients convex_upsample_backward(Value grad, Value flow, Value mask, const ConvexUpsampleAttrs& attrs);

/// For kernels: a position of a look-up along one axis. `first` is the first pixel of the window of 2 * radius + 2 pixels that it reads.
struct LookupAxis {
  int64_t first = 0;
  double fraction = 0;
  bool inside = false;  ///< Whether the window can have pixels of the level; false for NaN.
};
/// `center`: of the look-up, in pixels of the level.
LookupAxis lookup_axis(double center, int64_t radius, int64_t size);

}  // namespace galley
