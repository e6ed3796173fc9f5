// Imports pools; also reads the window attributes shared with convolutions.

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/onnx/import/window.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargestWindow = int64_t{1} << 24;  // limit of window sizes, so that arithmetic on shapes cannot overflow

void check(const std::vector<int64_t>& sizes, size_t count, int64_t least, std::string_view what) {
  GALLEY_CHECK_INPUT(sizes.size() == count, what, " has ", sizes.size(), " numbers, but must have ", count);
  for (const int64_t size : sizes)
    GALLEY_CHECK_INPUT(size >= least && size <= kLargestWindow, what, " contains ", size, ", but must be between ", least, " and ",
                       kLargestWindow);
}

/// The input as an image [N,C,H,W]; [N,C,L] becomes an image with one row.
Value image(const Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 3 || x.shape().rank() == 4, "its input is ", x.type(),
                     ", but must have dimensions [N,C,L] or [N,C,H,W]");
  GALLEY_CHECK_INPUT(is_floating(x.dtype()), "its input is ", x.type(), ", but must be floating-point");
  return x.shape().rank() == 3 ? unsqueeze(x, 2) : x;
}
void set_pooled(Call& c, Value y) { c.set(c.x(0).shape().rank() == 3 ? squeeze(y, 2) : y); }

bool is_volume(const Call& c) { return c.x(0).shape().rank() == 5; }

/// Whether Galley's pools support the padding: symmetric, at most half the kernel.
bool pads_most_half(const VolumeWindow& window) {
  bool most_half = window.even();
  for (size_t i = 0; i < 3; ++i) most_half = most_half && window.before[i] <= window.kernel[i] / 2;
  return most_half;
}

void max_pool_volume(Call& c) {
  const VolumeWindow window = volume_window(c, {});
  MaxPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.ceil_mode = window.ceil;
  const Value padded = pad_volume(c.x(0), window, std::numeric_limits<float>::lowest(), pads_most_half(window), attrs.padding);
  c.set(max_pool3d(padded, attrs));
}

void average_pool_volume(Call& c) {
  const VolumeWindow window = volume_window(c, {});
  AvgPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.ceil_mode = window.ceil;
  attrs.count_include_pad = c.integer("count_include_pad", 0) != 0;
  if (window.dilation != std::vector<int64_t>(3, 1)) c.refuse("dilations are not supported");
  const bool own = pads_most_half(window);
  if (!own && (window.ceil || !attrs.count_include_pad))
    c.refuse("asymmetric padding, or padding larger than half the kernel, is not supported for [N,C,D,H,W]");
  const Value padded = pad_volume(c.x(0), window, 0, own, attrs.padding);
  c.set(avg_pool3d(padded, attrs));
}

void max_pool(Call& c) {
  c.integer("storage_order", 0);
  if (c.needs_output(1)) c.refuse("its Indices output is read by other nodes, which is not supported");
  if (is_volume(c)) return max_pool_volume(c);
  const Value x = image(c);
  const Window window = window_of(c, c.x(0), {});
  MaxPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.ceil_mode = window.ceil;
  const Value padded = pad_window(x, window, std::numeric_limits<float>::lowest(), window.pads_most_half(), attrs.padding);
  set_pooled(c, max_pool2d(padded, attrs).y);
}

/// The fraction of each window that lies inside the image, in the order of the pool's result.
Tensor shares_inside(const Window& window, const Shape& image, const Shape& pooled) {
  GALLEY_CHECK_INPUT(pooled[2] * pooled[3] <= kLargestWindow, "its result is too large: ", pooled);
  std::vector<double> shares;
  const auto inside = [&](size_t i, int64_t o) {
    const int64_t begin = o * window.stride[i] - window.before[i], size = image[2 + static_cast<int>(i)];
    return std::max<int64_t>(1, std::min(begin + window.kernel[i], size) - std::max<int64_t>(begin, 0));
  };
  for (int64_t row = 0; row < pooled[2]; ++row) {
    for (int64_t column = 0; column < pooled[3]; ++column) {
      shares.push_back(static_cast<double>(inside(0, row) * inside(1, column)) / static_cast<double>(window.kernel[0] * window.kernel[1]));
    }
  }
  Tensor table(DType::kF32, {1, 1, pooled[2], pooled[3]});
  table.from_doubles(shares);
  return table;
}

void average_pool(Call& c) {
  if (is_volume(c)) return average_pool_volume(c);
  const Value x = image(c);
  const Window window = window_of(c, c.x(0), {});
  AvgPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.ceil_mode = window.ceil;
  attrs.count_include_pad = c.integer("count_include_pad", 0) != 0;
  if (window.dilation != std::vector<int64_t>{1, 1}) c.refuse("dilations are not supported");
  const bool counts_inside = !window.pads_most_half() && !attrs.count_include_pad;
  if (window.ceil && !window.pads_most_half())
    c.refuse("ceil_mode with asymmetric padding, or padding larger than half the kernel, is not supported");
  if (counts_inside) attrs.count_include_pad = true;
  const Value padded = pad_window(x, window, 0, window.pads_most_half(), attrs.padding);
  const Value mean = avg_pool2d(padded, attrs);
  set_pooled(c, counts_inside ? div(mean, c.table(shares_inside(window, x.shape(), mean.shape()))) : mean);
}

ReduceAttrs all_pixels(Value x) {
  ReduceAttrs attrs;
  attrs.keepdim = true;
  for (int axis = 2; axis < x.shape().rank(); ++axis) attrs.axes.push_back(axis);
  return attrs;
}
/// Global pooling for inputs of any rank from 3.
void global_average(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 3, "its input is ", x.type(), ", but must have dimensions [N,C,...]");
  if (x.shape().rank() == 4) return c.set(adaptive_avg_pool2d(x));
  c.set(mean(x, all_pixels(x)));
}
void global_max(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 3, "its input is ", x.type(), ", but must have dimensions [N,C,...]");
  if (x.shape().rank() == 4 && is_floating(x.dtype())) return c.set(adaptive_max_pool2d(x).y);
  c.set(amax(x, all_pixels(x)));
}

/// Extends a list for one axis to two axes, with `row` for the rows.
std::vector<int64_t> two(std::vector<int64_t> sizes, int64_t row) {
  if (sizes.size() == 1) sizes.insert(sizes.begin(), row);
  return sizes;
}

/// auto_pad SAME: the output size is ceil(input / stride), the padding as symmetric as possible.
void pad_for_same(Window& w, size_t i, int64_t size, bool more_after) {
  const int64_t results = (size + w.stride[i] - 1) / w.stride[i];
  const int64_t total = std::max<int64_t>(0, (results - 1) * w.stride[i] + w.dilation[i] * (w.kernel[i] - 1) + 1 - size);
  w.before[i] = more_after ? total / 2 : total - total / 2;
  w.after[i] = total - w.before[i];
}

}  // namespace

Window window_of(Call& c, Value x, std::vector<int64_t> kernel) {
  Window w;
  w.axes = static_cast<size_t>(x.shape().rank() - 2);
  const std::vector<int64_t> ones(w.axes, 1);
  w.kernel = c.ints("kernel_shape", std::move(kernel));
  w.stride = c.ints("strides", ones);
  w.dilation = c.ints("dilations", ones);
  std::vector<int64_t> pads = c.ints("pads", std::vector<int64_t>(2 * w.axes, 0));
  const std::string automatic = c.text("auto_pad", "NOTSET");
  const std::string& op = c.node.op_type;
  w.ceil = (op == "MaxPool" || op == "AveragePool") && c.integer("ceil_mode", 0) != 0;
  check(w.kernel, w.axes, 1, "kernel_shape");
  check(w.stride, w.axes, 1, "strides");
  check(w.dilation, w.axes, 1, "dilations");
  check(pads, 2 * w.axes, 0, "pads");
  w.kernel = two(w.kernel, 1);
  w.stride = two(w.stride, 1);
  w.dilation = two(w.dilation, 1);
  if (w.axes == 1) pads = {0, pads[0], 0, pads[1]};
  for (size_t i : {0u, 1u}) {
    w.before[i] = pads[i];
    w.after[i] = pads[2 + i];
    if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
      const bool line = w.axes == 1 && i == 0;
      pad_for_same(w, i, line ? 1 : x.shape()[static_cast<int>(i + w.axes)], automatic == "SAME_UPPER");
    } else if (automatic == "VALID") {
      w.before[i] = w.after[i] = 0;
    } else if (automatic != "NOTSET") {
      c.refuse(cat("auto_pad '", automatic, "' is not supported"));
    }
  }
  return w;
}

Value pad_window(Value x, const Window& window, double value, bool own, std::vector<int64_t>& padding) {
  if (own) {
    padding = {window.before[0], window.before[1]};
    return x;
  }
  padding = {0, 0};
  return pad(x, {0, 0, 0, 0, window.before[0], window.after[0], window.before[1], window.after[1]}, value);
}

VolumeWindow volume_window(Call& c, std::vector<int64_t> kernel) {
  constexpr size_t kAxes = 3;
  VolumeWindow w;
  w.kernel = c.ints("kernel_shape", std::move(kernel));
  w.stride = c.ints("strides", std::vector<int64_t>(kAxes, 1));
  w.dilation = c.ints("dilations", std::vector<int64_t>(kAxes, 1));
  const std::vector<int64_t> pads = c.ints("pads", std::vector<int64_t>(2 * kAxes, 0));
  const std::string automatic = c.text("auto_pad", "NOTSET");
  w.ceil = (c.node.op_type == "MaxPool" || c.node.op_type == "AveragePool") && c.integer("ceil_mode", 0) != 0;
  check(w.kernel, kAxes, 1, "kernel_shape");
  check(w.stride, kAxes, 1, "strides");
  check(w.dilation, kAxes, 1, "dilations");
  check(pads, 2 * kAxes, 0, "pads");
  if (automatic != "NOTSET" && automatic != "VALID") c.refuse(cat("auto_pad '", automatic, "' is not supported for [N,C,D,H,W]"));
  w.before.assign(kAxes, 0);
  w.after.assign(kAxes, 0);
  if (automatic == "VALID") return w;
  std::copy_n(pads.begin(), kAxes, w.before.begin());
  std::copy_n(pads.begin() + kAxes, kAxes, w.after.begin());
  return w;
}

Value pad_volume(Value x, const VolumeWindow& window, double value, bool own, std::vector<int64_t>& padding) {
  padding = window.before;
  if (own) return x;
  padding.assign(window.before.size(), 0);
  std::vector<int64_t> all(4, 0);  // batch and channels
  for (size_t i = 0; i < window.before.size(); ++i) {
    all.push_back(window.before[i]);
    all.push_back(window.after[i]);
  }
  return pad(x, all, value);
}

MakeTable pool_rows() {
  return {{"MaxPool", max_pool}, {"AveragePool", average_pool}, {"GlobalAveragePool", global_average}, {"GlobalMaxPool", global_max}};
}

}  // namespace galley::onnx_import
