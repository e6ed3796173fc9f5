#pragma once
// Features of regions of interest (He et al. 2017, Mask R-CNN), as torchvision.ops.roi_align.

#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct RoiAlignAttrs : OptionsOf<RoiAlignAttrs> {
  std::vector<int64_t> output_size{7, 7};
  double spatial_scale = 1;
  int64_t sampling_ratio = 0;
  bool aligned = false;
  void options(OptionVisitor& v) override;
};
struct RoiAlignBackwardAttrs : OptionsOf<RoiAlignBackwardAttrs> {
  std::vector<int64_t> input_size;  // rows and columns of x
  double spatial_scale = 1;
  int64_t sampling_ratio = 0;
  bool aligned = false;
  void options(OptionVisitor& v) override;
};

const OpDef& roi_align_op();
const OpDef& roi_align_backward_op();

/// The samples of a bin along one axis: `count` of them, the first at `first`, `step` apart, in pixels of x.
struct RoiAxis {
  double start = 0, bin = 0;  // of the region; size of a bin
  int64_t samples = 1;        // per bin
  /// The position of sample s of bin b.
  double at(int64_t b, int64_t s) const {
    return start + static_cast<double>(b) * bin + (static_cast<double>(s) + 0.5) * bin / static_cast<double>(samples);
  }
};
/// The bins of a region from `low` to `high` (input coordinates).
RoiAxis roi_axis(double low, double high, int64_t bins, double spatial_scale, int64_t sampling_ratio, bool aligned);
/// The two pixels that a sample reads and the weight of the second. `inside`: false where the sample is more than a pixel outside.
struct RoiSample {
  bool inside = false;
  int64_t low = 0, high = 0;
  double fraction = 0;
};
RoiSample roi_sample(double position, int64_t size);

/// x [N,C,H,W], boxes [N,R,4] (x1, y1, x2, y2 in the coordinates of the image) -> [N,R,C,output_size]: each region is divided into bins; a
/// bin is the mean of bilinear samples. `count` (optional, i64 [N]): regions from this row on are 0 and cost nothing.
Value roi_align(Value x, Value boxes, const RoiAlignAttrs& attrs, Value count = {});
/// The gradient of x, [N,C,input_size].
Value roi_align_backward(Value grad, Value boxes, const RoiAlignBackwardAttrs& attrs, Value count = {});

}  // namespace galley
