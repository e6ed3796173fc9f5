#pragma once
// Window attributes of convolutions and pools.

#include <array>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// Sizes for rows and columns; with one spatial axis (axes 1) the first number is for a single row.
struct Window {
  size_t axes = 2;
  std::vector<int64_t> kernel, stride{1, 1}, dilation{1, 1};
  std::array<int64_t, 2> before{}, after{};  // padding before and after rows and columns
  bool ceil = false;
  bool even() const { return before == after; }
  /// Whether Galley's pools support the padding: symmetric, at most half the kernel.
  bool pads_most_half() const { return even() && before[0] <= kernel[0] / 2 && before[1] <= kernel[1] / 2; }
};

/// Depth, rows and columns of an input [N,C,D,H,W].
struct VolumeWindow {
  std::vector<int64_t> kernel, stride, dilation, before, after;
  bool ceil = false;
  bool even() const { return before == after; }
};
/// Reads kernel_shape (default: `kernel`), strides, dilations, pads and ceil_mode for an input [N,C,D,H,W]. Throws Error if they do not
/// fit; of auto_pad it knows NOTSET and VALID.
VolumeWindow volume_window(Call& c, std::vector<int64_t> kernel);
/// As pad_window for x [N,C,D,H,W].
Value pad_volume(Value x, const VolumeWindow& window, double value, bool own, std::vector<int64_t>& padding);

/// Reads kernel_shape (default: `kernel`), strides, dilations, pads, auto_pad and ceil_mode for an input [N,C,L] or [N,C,H,W]. Throws Error
/// if they do not fit.
Window window_of(Call& c, Value x, std::vector<int64_t> kernel);
/// If the operator can pad (`own`), returns x [N,C,H,W] and sets `padding`. Otherwise returns x padded with `value` and sets `padding` to
/// 0.
Value pad_window(Value x, const Window& window, double value, bool own, std::vector<int64_t>& padding);

}  // namespace galley::onnx_import
