#pragma once
// Pooling over windows, and adaptive pooling to a fixed size, with their backward operators.

#include "libcore/ops/attrs.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// The windows of pooling: each option is one number for rows and columns, or two.
struct PoolWindow {
  std::vector<int64_t> kernel_size{2};
  std::vector<int64_t> stride;  // empty: kernel_size
  std::vector<int64_t> padding{0};
  bool ceil_mode = false;
};
struct MaxPoolWindow : PoolWindow {
  std::vector<int64_t> dilation{1};
};
struct AvgPoolWindow : PoolWindow {
  bool count_include_pad = true;
};
/// Visit the options of the window.
void window_options(OptionVisitor& v, MaxPoolWindow& window);
void window_options(OptionVisitor& v, AvgPoolWindow& window);

struct MaxPool2dAttrs : OptionsOf<MaxPool2dAttrs>, MaxPoolWindow {
  void options(OptionVisitor& v) override { window_options(v, *this); }
};
struct MaxPool2dBackwardAttrs : OptionsOf<MaxPool2dBackwardAttrs>, MaxPoolWindow {
  std::vector<int64_t> input_size;
  void options(OptionVisitor& v) override;
};
struct AvgPool2dAttrs : OptionsOf<AvgPool2dAttrs>, AvgPoolWindow {
  void options(OptionVisitor& v) override { window_options(v, *this); }
};
struct AvgPool2dBackwardAttrs : OptionsOf<AvgPool2dBackwardAttrs>, AvgPoolWindow {
  std::vector<int64_t> input_size;
  void options(OptionVisitor& v) override;
};
struct AdaptiveAvgPool2dAttrs : OptionsOf<AdaptiveAvgPool2dAttrs> {
  std::vector<int64_t> output_size{1};
  void options(OptionVisitor& v) override;
};
struct AdaptiveAvgPool2dBackwardAttrs : OptionsOf<AdaptiveAvgPool2dBackwardAttrs> {
  std::vector<int64_t> input_size;
  void options(OptionVisitor& v) override;
};
struct AdaptiveMaxPool2dAttrs : OptionsOf<AdaptiveMaxPool2dAttrs> {
  std::vector<int64_t> output_size{1};
  void options(OptionVisitor& v) override;
};
struct AdaptiveMaxPool2dBackwardAttrs : OptionsOf<AdaptiveMaxPool2dBackwardAttrs> {
  std::vector<int64_t> input_size;
  void options(OptionVisitor& v) override;
};

/// The elements that a window covers along one axis, [begin, end), clipped to the input. `size` also counts padding inside the padded
/// input: the divisor of PyTorch with count_include_pad.
struct PoolRange {
  int64_t begin = 0, end = 0, size = 0;
};
/// Window `o` of an average pooling.
PoolRange pool_range(int64_t o, int64_t in, int64_t kernel, int64_t stride, int64_t padding);
/// Window `o` of adaptive pooling: [floor(o in / out), ceil((o+1) in / out)).
PoolRange adaptive_range(int64_t o, int64_t in, int64_t out);

/// [N,C,H',W'] for x [N,C,H,W]. Throw if the window does not fit.
Shape avg_pool2d_shape(const AvgPoolWindow& window, const Shape& x);
Shape adaptive_pool2d_shape(const std::vector<int64_t>& output_size, const Shape& x);

const OpDef& max_pool2d_op();
const OpDef& max_pool2d_backward_op();
const OpDef& avg_pool2d_op();
const OpDef& avg_pool2d_backward_op();
const OpDef& adaptive_avg_pool2d_op();
const OpDef& adaptive_avg_pool2d_backward_op();
const OpDef& adaptive_max_pool2d_op();
const OpDef& adaptive_max_pool2d_backward_op();

struct MaxPool {
  Value y, index;
};
/// x [N,C,H,W] -> y [N,C,H',W'] and index u8: kh * kernel width + kw of the first maximum in the window (windows of at most 255 elements).
MaxPool max_pool2d(Value x, const MaxPool2dAttrs& attrs);
Value max_pool2d_backward(Value grad, Value index, const MaxPool2dBackwardAttrs& attrs);
Value avg_pool2d(Value x, const AvgPool2dAttrs& attrs);
Value avg_pool2d_backward(Value grad, const AvgPool2dBackwardAttrs& attrs);
Value adaptive_avg_pool2d(Value x, const AdaptiveAvgPool2dAttrs& attrs = {});
Value adaptive_avg_pool2d_backward(Value grad, const AdaptiveAvgPool2dBackwardAttrs& attrs);
/// Pooling over [depth, rows, columns] of x [N,C,D,H,W] -> [N,C,D',H',W']: over the planes, then along the depth. Each option is one number
/// or three. The largest value of a window is found once if it occurs several times: the first in the order of depth, rows, columns.
Value max_pool3d(Value x, const MaxPool2dAttrs& attrs);
Value avg_pool3d(Value x, const AvgPool2dAttrs& attrs);
Value adaptive_avg_pool3d(Value x, const AdaptiveAvgPool2dAttrs& attrs = {});

/// index i32: row * W + column in the input.
MaxPool adaptive_max_pool2d(Value x, const AdaptiveMaxPool2dAttrs& attrs = {});
Value adaptive_max_pool2d_backward(Value grad, Value index, const AdaptiveMaxPool2dBackwardAttrs& attrs);

}  // namespace galley
