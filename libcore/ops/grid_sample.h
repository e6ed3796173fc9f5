#pragma once
// Sampling of images at given points, as torch.nn.functional.grid_sample.

#include <array>
#include <string_view>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

enum class GridSampleMode { kBilinear, kNearest };
inline constexpr std::array<std::string_view, 2> kGridSampleModeNames{"bilinear", "nearest"};
enum class GridPadding { kZeros, kBorder, kReflection };
inline constexpr std::array<std::string_view, 3> kGridPaddingNames{"zeros", "border", "reflection"};

/// Attributes of grid_sample and of its backward operators.
struct GridSampleAttrs : OptionsOf<GridSampleAttrs> {
  GridSampleMode mode = GridSampleMode::kBilinear;
  GridPadding padding_mode = GridPadding::kZeros;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
};
struct GridSampleBackwardAttrs : OptionsOf<GridSampleBackwardAttrs> {
  std::vector<int64_t> input_size;  // rows and columns of x
  GridSampleMode mode = GridSampleMode::kBilinear;
  GridPadding padding_mode = GridPadding::kZeros;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
  GridSampleAttrs forward() const;
};

/// A coordinate in pixels along one axis. `slope`: of the pixel in the coordinate of the grid, 0 where it is clipped.
struct GridPoint {
  double position = 0, slope = 0;
};
/// Where the coordinate `at` of a grid (-1..1) lies along an axis of `size` pixels.
GridPoint grid_point(double at, int64_t size, GridPadding padding, bool align_corners);
/// The pixels that a point reads along one axis, each with its weight, the slope of the weight in the position, and whether it exists.
struct GridTap {
  int64_t pixel = 0;
  double weight = 0, slope = 0;
  bool inside = false;
};
std::array<GridTap, 2> grid_taps(double position, int64_t size, GridSampleMode mode);

const OpDef& grid_sample_op();
const OpDef& grid_sample_backward_op();
const OpDef& grid_sample_backward_grid_op();

/// x [N,C,H,W], grid [N,h,w,2] with points (x, y), where -1 and 1 are the image's borders (align_corners: the centers of its corner pixels)
/// -> [N,C,h,w]. Pixels outside the image are 0, the nearest pixel, or the mirrored image (GridPadding). A point that is NaN gives NaN
/// where they are 0, and the first row or column elsewhere.
Value grid_sample(Value x, Value grid, const GridSampleAttrs& attrs = {});
/// The gradient of x, [N,C,input_size].
Value grid_sample_backward(Value grad, Value grid, const GridSampleBackwardAttrs& attrs);
/// The gradient of the grid, [N,h,w,2]; 0 for mode nearest.
Value grid_sample_backward_grid(Value grad, Value x, Value grid, const GridSampleAttrs& attrs);

}  // namespace galley
