#pragma once
// Features of regions of interest (He et al. 2017, Mask R-CNN), as torchvision.ops.roi_align and MultiScaleRoIAlign.

#include <algorithm>
#include <cmath>
#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct RoiAlignAttrs : OptionsOf<RoiAlignAttrs> {
  std::vector<int64_t> output_size{7, 7};
  std::vector<double> spatial_scale{1};  // of each level
  int64_t sampling_ratio = 0;
  bool aligned = false;
  void options(OptionVisitor& v) override;
};
struct RoiAlignBackwardAttrs : OptionsOf<RoiAlignBackwardAttrs> {
  std::vector<int64_t> input_size;       // rows and columns of the level
  std::vector<double> spatial_scale{1};  // of each level
  int64_t level = 0;                     // the one whose gradient it is
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

/// The level of a pyramid that a region of that area reads (Lin et al. 2017, equation 1): level 4 has a scale of 1/16, and regions of
/// 224 x 224 pixels read it. With scales of equal size all regions read the first.
template <class T>
size_t roi_level(T area, const std::vector<double>& scales) {
  if (scales.size() == 1) return 0;
  const auto level_of = [](double scale) { return static_cast<int64_t>(-std::log2(scale)); };
  const auto first = level_of(scales.front()), last = level_of(scales.back());
  const T level = std::floor(4 + std::log2(std::sqrt(area) / T{224}) + T(1e-6));
  if (!(level >= static_cast<T>(first))) return 0;
  return static_cast<size_t>(std::min(static_cast<int64_t>(std::min(level, static_cast<T>(last))), last) - first);
}

/// x [N,C,H,W], boxes [N,R,4] (x1, y1, x2, y2 in the coordinates of the image) -> [N,R,C,output_size]: each region is divided into bins; a
/// bin is the mean of bilinear samples. `count` (optional, i64 [N]): regions from this row on are 0 and cost nothing. `coarser`: further
/// levels of a pyramid, with a scale each; a region reads the level that suits its size (roi_level).
Value roi_align(Value x, Value boxes, const RoiAlignAttrs& attrs, Value count = {}, const std::vector<Value>& coarser = {});
/// The gradient of a level, [N,C,input_size].
Value roi_align_backward(Value grad, Value boxes, const RoiAlignBackwardAttrs& attrs, Value count = {});

}  // namespace galley
