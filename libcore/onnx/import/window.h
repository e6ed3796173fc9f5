#pragma once
// Windows of convolutions and pools, as ONNX describes them.

#include <array>
#include <vector>

#include "libcore/onnx/import/import.h"

namespace galley::onnx_import {

struct Window {
  std::vector<int64_t> kernel, stride{1, 1}, dilation{1, 1};
  std::array<int64_t, 2> before{}, behind{};  // padding of rows and columns
  bool ceil = false;
  bool padded() const { return before[0] + before[1] + behind[0] + behind[1] > 0; }
  bool even() const { return before == behind; }
};

/// Reads kernel_shape (or takes `kernel`), strides, dilations, pads, auto_pad and ceil_mode.
Window window_of(Call& c, Value x, std::vector<int64_t> kernel);
/// x itself and `padding` for an operator that pads both sides alike; else x padded with `value`, and no padding.
Value pad_window(Value x, const Window& window, double value, std::vector<int64_t>& padding);

}  // namespace galley::onnx_import
