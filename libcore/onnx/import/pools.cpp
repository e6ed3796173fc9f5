// Windows, pools, resizing.

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/onnx/import/window.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of a window's numbers: no arithmetic on shapes overflows

void check(const std::vector<int64_t>& sizes, size_t count, int64_t least, std::string_view what) {
  GALLEY_CHECK_INPUT(sizes.size() == count, what, " has ", sizes.size(), " numbers, an image wants ", count);
  for (const int64_t size : sizes) GALLEY_CHECK_INPUT(size >= least && size <= kLargest, what, " has the number ", size);
}

Value image(const Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 4, "Galley pools images [N,C,H,W]; the input is ", x.type());
  return x;
}

void max_pool(Call& c) {
  const Value x = image(c);
  const Window window = window_of(c, x, {});
  c.integer("storage_order", 0);
  if (c.wants_output(1)) c.refuse("the places of its maxima are read by other nodes");
  MaxPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.dilation = window.dilation;
  attrs.ceil_mode = window.ceil;
  const Value padded = pad_window(x, window, std::numeric_limits<float>::lowest(), attrs.padding);
  c.set(max_pool2d(padded, attrs).y);
}

void average_pool(Call& c) {
  const Value x = image(c);
  const Window window = window_of(c, x, {});
  AvgPool2dAttrs attrs;
  attrs.kernel_size = window.kernel;
  attrs.stride = window.stride;
  attrs.ceil_mode = window.ceil;
  attrs.count_include_pad = c.integer("count_include_pad", 0) != 0;
  if (window.dilation != std::vector<int64_t>{1, 1}) c.refuse("it has dilations");
  if (!window.even() && !attrs.count_include_pad) c.refuse("its padding differs before and behind, and does not count in the means (count_include_pad=0)");
  const Value padded = pad_window(x, window, 0, attrs.padding);
  c.set(avg_pool2d(padded, attrs));
}

void global_average(Call& c) { c.set(adaptive_avg_pool2d(image(c))); }
void global_max(Call& c) { c.set(adaptive_max_pool2d(image(c)).y); }

void resize_image(Call& c) {
  const Value x = image(c);
  const std::string mode = c.text("mode", "nearest"), place = c.text("coordinate_transformation_mode", "half_pixel"), nearest = c.text("nearest_mode", "round_prefer_floor");
  for (const char* ignored : {"cubic_coeff_a", "exclude_outside", "extrapolation_value"}) c.find(ignored);
  if (c.integer("antialias", 0) != 0) c.refuse("it smooths (antialias=1)");
  if (c.find("axes") != nullptr || c.text("keep_aspect_ratio_policy", "stretch") != "stretch") c.refuse("its sizes are given along some axes, or by a policy");
  ResizeAttrs attrs;
  if (mode == "nearest" && place == "asymmetric" && nearest == "floor") {
    attrs.mode = ResizeMode::kNearest;
  } else if (mode == "linear" && (place == "half_pixel" || place == "pytorch_half_pixel" || place == "align_corners")) {
    attrs.align_corners = place == "align_corners";
  } else {
    c.refuse(cat("mode ", mode, " with ", place, mode == "nearest" ? " and " + nearest : "", " is not known"), "linear with half_pixel or align_corners, nearest with asymmetric and floor are");
  }
  if (c.has(3)) {
    const std::vector<int64_t> sizes = c.ints(3);
    GALLEY_CHECK_INPUT(sizes.size() == 4 && sizes[1] == x.channels(), "the sizes want 4 numbers that keep the channels of ", x.type());
    attrs.size = {sizes[2], sizes[3]};
  } else {
    const std::optional<Tensor> scales = c.constant(2);
    GALLEY_CHECK_INPUT(scales && is_floating(scales->dtype()) && scales->elements() == 4, "the scales must be 4 numbers that are known before the model runs");
    const std::vector<double> by = scales->to_doubles();
    GALLEY_CHECK_INPUT(by[0] == 1 && by[1] == 1 && by[2] > 0 && by[3] > 0 && by[2] < 1e4 && by[3] < 1e4, "only rows and columns can be resized");
    for (int axis : {2, 3}) attrs.size.push_back(static_cast<int64_t>(std::floor(static_cast<double>(x.shape()[axis]) * by[static_cast<size_t>(axis)])));
  }
  check(attrs.size, 2, 1, "the new size");
  c.set(resize(x, attrs));
}

}  // namespace

Window window_of(Call& c, Value x, std::vector<int64_t> kernel) {
  Window w;
  w.kernel = c.ints("kernel_shape", std::move(kernel));
  w.stride = c.ints("strides", w.stride);
  w.dilation = c.ints("dilations", w.dilation);
  const std::vector<int64_t> pads = c.ints("pads", {0, 0, 0, 0});
  const std::string automatic = c.text("auto_pad", "NOTSET");
  w.ceil = c.node.op_type != "Conv" && c.integer("ceil_mode", 0) != 0;
  check(w.kernel, 2, 1, "kernel_shape");
  check(w.stride, 2, 1, "strides");
  check(w.dilation, 2, 1, "dilations");
  check(pads, 4, 0, "pads");
  for (size_t i : {0u, 1u}) {
    w.before[i] = pads[i];
    w.behind[i] = pads[2 + i];
    if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
      const int64_t size = x.shape()[2 + static_cast<int>(i)], results = (size + w.stride[i] - 1) / w.stride[i];
      const int64_t total = std::max<int64_t>(0, (results - 1) * w.stride[i] + w.dilation[i] * (w.kernel[i] - 1) + 1 - size);
      w.before[i] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.behind[i] = total - w.before[i];
    } else if (automatic == "VALID") {
      w.before[i] = w.behind[i] = 0;
    } else if (automatic != "NOTSET") {
      c.refuse(cat("auto_pad ", automatic, " is not known"));
    }
  }
  return w;
}

Value pad_window(Value x, const Window& window, double value, std::vector<int64_t>& padding) {
  if (window.even()) {
    padding = {window.before[0], window.before[1]};
    return x;
  }
  padding = {0, 0};
  return pad(x, {0, 0, 0, 0, window.before[0], window.behind[0], window.before[1], window.behind[1]}, value);
}

MakeTable pool_rows() {
  return {{"MaxPool", max_pool}, {"AveragePool", average_pool}, {"GlobalAveragePool", global_average}, {"GlobalMaxPool", global_max}, {"Resize", resize_image}};
}

}  // namespace galley::onnx_import
