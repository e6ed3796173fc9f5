#pragma once
// Two older ways to divide regions of interest into bins: the largest pixel of each (Girshick 2015, Fast R-CNN), and position-sensitive
// means (Dai et al. 2016, R-FCN), as torchvision.ops.roi_pool and ps_roi_align.

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct RoiPoolAttrs : OptionsOf<RoiPoolAttrs> {
  std::vector<int64_t> output_size{7, 7};
  double spatial_scale = 1;
  void options(OptionVisitor& v) override;
};
struct PsRoiAlignAttrs : OptionsOf<PsRoiAlignAttrs> {
  std::vector<int64_t> output_size{7, 7};
  double spatial_scale = 1;
  int64_t sampling_ratio = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& roi_pool_op();
const OpDef& ps_roi_align_op();

/// The pixels [begin, end) of bin `bin` of `bins` along an axis of `size` pixels, for a region from `low` to `high` (input coordinates).
/// Corners are rounded to pixels, halves away from 0; a region has at least one pixel; bins overlap where they share a pixel. As
/// torchvision's operator, which computes sizes of bins in the dtype `T` of the boxes.
struct RoiPixels {
  int64_t begin = 0, end = 0;
};
template <class T>
RoiPixels roi_pixels(T low, T high, T spatial_scale, int64_t bin, int64_t bins, int64_t size);
extern template RoiPixels roi_pixels(float, float, float, int64_t, int64_t, int64_t);
extern template RoiPixels roi_pixels(double, double, double, int64_t, int64_t, int64_t);

struct RoiPool {
  Value y;
  Value index;  // i64, of y's shape: the pixel (row * W + column) of each maximum, the first of equal ones; -1: the bin is empty
};
/// x [N,C,H,W], boxes [N,R,4] (x1, y1, x2, y2 in the coordinates of the image) -> [N,R,C,output_size]; a bin outside the image is 0.
RoiPool roi_pool(Value x, Value boxes, const RoiPoolAttrs& attrs);
/// x [N,C*h*w,H,W], boxes [N,R,4] -> [N,R,C,h,w]: bin (i, j) of channel c is the mean of bilinear samples of input channel
/// (c*h + i)*w + j. Pixels are at their centers, as in roi_align with `aligned`. A bin without samples is 0 (torchvision: NaN).
Value ps_roi_align(Value x, Value boxes, const PsRoiAlignAttrs& attrs);

}  // namespace galley
