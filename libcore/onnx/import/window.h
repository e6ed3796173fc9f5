#pragma once
// Windows of convolutions and pools, as ONNX describes them.

#include <array>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

/// Of rows and columns; of a line (axes 1) the rows are one.
struct Window {
  size_t axes = 2;
  std::vector<int64_t> kernel, stride{1, 1}, dilation{1, 1};
  std::array<int64_t, 2> before{}, after{};  // padding of rows and columns
  bool ceil = false;
  bool even() const { return before == after; }
  /// Galley's pools pad by half their kernel at most.
  bool pads_most_half() const { return even() && before[0] <= kernel[0] / 2 && before[1] <= kernel[1] / 2; }
};

/// Reads kernel_shape (or takes `kernel`), strides, dilations, pads, auto_pad and ceil_mode for an input [N,C,L] or [N,C,H,W].
Window window_of(Call& c, Value x, std::vector<int64_t> kernel);
/// x [N,C,H,W] itself and `padding` where the operator pads by itself (`own`); else x padded with `value`, and no padding.
Value pad_window(Value x, const Window& window, double value, bool own, std::vector<int64_t>& padding);

}  // namespace galley::onnx_import
