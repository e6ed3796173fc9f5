#pragma once
// What detectors of instances compute besides layers: the targets of masks and of key points in regions, and key points from heat maps, as
// torchvision's Mask R-CNN and Keypoint R-CNN. Boxes are (x1, y1, x2, y2) in pixels.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct MaskTargetsAttrs : OptionsOf<MaskTargetsAttrs> {
  int64_t size = 28;
  void options(OptionVisitor& v) override;
};
struct KeypointCellsAttrs : OptionsOf<KeypointCellsAttrs> {
  int64_t size = 56;
  void options(OptionVisitor& v) override;
};

const OpDef& mask_targets_op();
const OpDef& keypoint_cells_op();
const OpDef& locate_keypoints_op();

/// masks u8 [M,H,W] of 0 and 1, boxes [N,R,4], object i64 [N,R] -> [N,R,size,size]: the part of the mask object[n,r] in each box, divided
/// into cells as roi_align without `aligned` and with adaptive samples does. Rows whose object is not in 0..M-1 are 0.
Value mask_targets(Value masks, Value boxes, Value object, int64_t size);

/// The class that cross_entropy ignores by default.
inline constexpr int64_t kNoCell = -100;
/// keypoints [M,K,3] (x, y, and whether it is visible: above 0), boxes [N,R,4], object i64 [N,R] -> i64 [N,R,K]: the cell, row * size +
/// column, of a box divided into size x size cells that holds the key point of the object. kNoCell for points that are not visible or
/// outside the box, and for rows whose object is not in 0..M-1. A point on the right or lower side is in the last cell.
Value keypoint_cells(Value keypoints, Value boxes, Value object, int64_t size);

/// heat [N,R,K,h,w], boxes [N,R,4], count i64 [N] -> [N,R,K,3]: the heat map of each box is resized to the box, rounded up to pixels, by
/// bicubic interpolation (a = -0.75); the result is the center of its largest pixel, x and y, and its value. Of equal pixels the first
/// counts. Rows from count[n] on are 0.
Value locate_keypoints(Value heat, Value boxes, Value count);

/// The four weights of bicubic interpolation (a = -0.75) at a fraction 0..1 between the second and the third value.
struct CubicWeights {
  explicit CubicWeights(double fraction) {
    const auto near = [](double t) { return ((1.25 * t) - 2.25) * t * t + 1; };
    const auto far = [](double t) { return ((-0.75 * t + 3.75) * t - 6) * t + 3; };
    at[0] = far(fraction + 1);
    at[1] = near(fraction);
    at[2] = near(1 - fraction);
    at[3] = far(2 - fraction);
  }
  double at[4];
};

}  // namespace galley
