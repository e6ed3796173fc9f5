#pragma once
// Resizing of images [N,C,H,W], as torch.nn.functional.interpolate does without antialias.

#include <array>
#include <string_view>
#include <vector>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

enum class ResizeMode { kBilinear, kNearest };
inline constexpr std::array<std::string_view, 2> kResizeModeNames{"bilinear", "nearest"};
struct ResizeAttrs : OptionsOf<ResizeAttrs> {
  std::vector<int64_t> size;  // rows, columns of the output
  ResizeMode mode = ResizeMode::kBilinear;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
};
struct ResizeBackwardAttrs : OptionsOf<ResizeBackwardAttrs> {
  std::vector<int64_t> input_size;
  ResizeMode mode = ResizeMode::kBilinear;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
};
/// The source of a resized pixel: rows (or columns) `low` and `high` with weights 1-fraction and fraction; nearest takes `low`
/// only. As torch.nn.functional.interpolate without antialias: half-pixel centers, or aligned corners.
struct ResizeSource {
  int64_t low = 0, high = 0;
  double fraction = 0;
};
ResizeSource resize_source(int64_t out, int64_t in_size, int64_t out_size, ResizeMode mode, bool align_corners);

const OpDef& resize_op();
const OpDef& resize_backward_op();

/// x [N,C,H,W] -> [N,C,size].
Value resize(Value x, const ResizeAttrs& attrs);
Value resize_backward(Value grad, const ResizeBackwardAttrs& attrs);

}  // namespace galley
