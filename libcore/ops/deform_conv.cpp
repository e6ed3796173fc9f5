#include "libcore/ops/deform_conv.h"

#include <algorithm>

#include "libcore/ops/attrs.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/grid_sample.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

constexpr size_t kX = 0, kOffset = 1, kWeight = 2, kBias = 3, kMask = 4;

std::vector<TensorType> infer(const OpContext& c) {
  const auto& attrs = c.attrs<DeformConv2dAttrs>();
  const TensorType &x = c.in(kX), &weight = c.in(kWeight);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 4 && weight.shape.rank() == 4, "x must be [N,C,H,W] and the weight [O,C/groups,kh,kw], not ", x, " and ",
               weight);
  GALLEY_CHECK(weight.dtype == x.dtype, "the weight is ", weight.dtype, ", but x is ", x.dtype);
  TensorType y = x;
  y.format = {};
  y.names = {};
  y.shape = conv_shape(attrs, x.shape, weight.shape);
  const int64_t taps = weight.shape[2] * weight.shape[3];
  const auto check = [&](size_t input, std::string_view name, int64_t of_tap) {
    const TensorType& maps = c.in(static_cast<int>(input));
    check_floating(maps, name);
    GALLEY_CHECK(maps.shape.rank() == 4 && maps.shape[0] == y.shape[0] && maps.shape[2] == y.shape[2] && maps.shape[3] == y.shape[3] &&
                     maps.shape[1] > 0 && maps.shape[1] % (of_tap * taps) == 0,
                 name, " must be [", y.shape[0], ",", of_tap * taps, "*D,", y.shape[2], ",", y.shape[3], "], not ", maps);
    return maps.shape[1] / (of_tap * taps);
  };
  const int64_t groups = check(kOffset, "offset", 2);
  GALLEY_CHECK(x.shape[1] % groups == 0, "the offsets have ", groups, " groups, which do not divide the ", x.shape[1], " channels of x");
  if (c.has(kMask)) {
    const int64_t of_mask = check(kMask, "mask", 1);
    GALLEY_CHECK(of_mask == groups, "the mask has ", of_mask, " groups, but the offsets have ", groups);
  }
  if (c.has(kBias)) GALLEY_CHECK(c.in(kBias).shape == Shape({weight.shape[0]}), "bias must be [", weight.shape[0], "], not ", c.in(kBias));
  return {y};
}

/// Sizes and sampled values of one application. Groups of offsets are separate images, and taps are rows of the grid, so that one
/// grid_sample reads everything.
struct Sampling {
  Sampling(const Conv2dWindow& convolution, Value image, Value moved, Value kernel, const Shape& result)
      : window(convolution), x(image), offset(moved), weight(kernel), y(result) {
    rows = weight.shape()[2];
    columns = weight.shape()[3];
    taps = rows * columns;
    groups = offset.shape()[1] / (2 * taps);
  }
  Shape images() const { return {x.shape()[0] * groups, x.shape()[1] / groups, x.shape()[2], x.shape()[3]}; }
  Shape samples() const { return {x.shape()[0] * groups, x.shape()[1] / groups, taps * y[2], y[3]}; }
  Shape patches() const { return {x.shape()[0], x.shape()[1] * taps, y[2], y[3]}; }
  Shape maps() const { return {x.shape()[0] * groups, 1, taps * y[2], y[3]}; }
  Shape kernel() const { return {weight.shape()[0], weight.shape()[1] * taps, 1, 1}; }

  /// The pixel that each tap reads along an axis if it is not moved, to be broadcast over [images, rows, columns, H', W'].
  Value base(int64_t axis, int64_t tap_axis, int64_t position_axis) const {
    const auto a = static_cast<size_t>(axis);
    const auto along = [&](int64_t at, int64_t size) {
      Shape shape{1, 1, 1, 1, 1};
      shape[static_cast<int>(at)] = size;
      return iota(x.graph(), x.dtype(), shape, at);
    };
    const double stride = static_cast<double>(per_axis(window.stride, 2)[a]),
                 dilation = static_cast<double>(per_axis(window.dilation, 2)[a]),
                 padding = static_cast<double>(per_axis(window.padding, 2)[a]);
    const Value tap = along(tap_axis, axis == 0 ? rows : columns), position = along(position_axis, y[static_cast<int>(axis) + 2]);
    return add(affine(tap, dilation), affine(position, stride, -padding));
  }
  /// Positions in pixels as coordinates of a grid without align_corners: (2 p + 1) / size - 1.
  Value coordinates(int64_t axis) const {
    const int64_t images = x.shape()[0] * groups;
    const Value pairs = reshape(offset, Shape{images * taps, 2, y[2], y[3]});
    const Value moved = reshape(slice(pairs, 1, axis, axis + 1), Shape{images, rows, columns, y[2], y[3]});
    const auto size = static_cast<double>(x.shape()[static_cast<int>(axis) + 2]);
    return affine(add(moved, base(axis, 1 + axis, 3 + axis)), 2 / size, 1 / size - 1);
  }
  Value grid() const {
    const Shape one{x.shape()[0] * groups, taps * y[2], y[3], 1};
    return concat({reshape(coordinates(1), one), reshape(coordinates(0), one)}, 3);
  }

  const Conv2dWindow& window;
  Value x, offset, weight;
  Shape y;
  int64_t rows = 0, columns = 0, taps = 0, groups = 0;
};

/// The convolution of the sampled patches: 1 x 1, with the taps of a channel next to each other.
template <class Attrs>
Attrs pointwise(const Conv2dWindow& window) {
  Attrs attrs;
  attrs.groups = window.groups;
  return attrs;
}

void define(Expansion& e) {
  const Sampling s(e.attrs<DeformConv2dAttrs>(), e.in(kX), e.in(kOffset), e.in(kWeight), e.output_type().shape);
  Value samples = grid_sample(reshape(s.x, s.images()), s.grid());
  if (e.has(kMask)) samples = mul(samples, reshape(e.in(kMask), s.maps()));
  Value y = galley::conv2d(reshape(samples, s.patches()), reshape(s.weight, s.kernel()), {}, pointwise<Conv2dAttrs>(s.window));
  if (e.has(kBias)) y = add(y, definition::per_channel(e.in(kBias), 4));
  e.set(0, y);
}

/// The gradient of the offsets: that of the grid, in pixels.
Value offset_gradient(const Sampling& s, Value grid_gradient) {
  const Shape& maps = s.offset.shape();
  std::vector<Value> axes;
  for (const int axis : {0, 1}) {
    const Value along = slice(grid_gradient, 3, 1 - axis, 2 - axis);  // the grid holds columns first
    axes.push_back(
        reshape(affine(along, 2 / static_cast<double>(s.x.shape()[axis + 2])), Shape{maps[0] * s.groups * s.taps, 1, s.y[2], s.y[3]}));
  }
  return reshape(concat({axes[0], axes[1]}, 1), maps);
}

void gradient(GradientBuilder& g) {
  const Sampling s(g.attrs<DeformConv2dAttrs>(), g.in(kX), g.in(kOffset), g.in(kWeight), g.out().shape());
  const Value mask = g.in(kMask);
  const bool wants_patches = g.wants(kX) || g.wants(kOffset) || (mask && g.wants(kMask));
  if (g.in(kBias) && g.wants(kBias)) g.set(kBias, cast(sum(g.grad(), {0, 2, 3}), g.in(kBias).dtype()));
  if (!wants_patches && !g.wants(kWeight)) return;
  const Value images = reshape(s.x, s.images()), grid = s.grid();
  const Value factors = mask ? reshape(mask, s.maps()) : Value{};
  const bool reads_samples = g.wants(kWeight) || (mask && g.wants(kMask));
  const Value samples = reads_samples ? grid_sample(images, grid) : Value{};
  if (g.wants(kWeight)) {
    auto attrs = pointwise<Conv2dBackwardWeightsAttrs>(s.window);
    attrs.kernel_size = {1, 1};
    const Value patches = reshape(mask ? mul(samples, factors) : samples, s.patches());
    g.set(kWeight, reshape(conv2d_backward_weights(patches, g.grad(), attrs), s.weight.shape()));
  }
  if (!wants_patches) return;
  auto attrs = pointwise<Conv2dBackwardDataAttrs>(s.window);
  attrs.input_size = {s.y[2], s.y[3]};
  Value grad = reshape(conv2d_backward_data(g.grad(), reshape(s.weight, s.kernel()), attrs), s.samples());
  if (mask && g.wants(kMask)) g.set(kMask, reshape(sum(mul(grad, samples), {1}), mask.shape()));
  if (mask) grad = mul(grad, factors);
  if (g.wants(kX)) {
    GridSampleBackwardAttrs back;
    back.input_size = {s.x.shape()[2], s.x.shape()[3]};
    g.set(kX, reshape(grid_sample_backward(grad, grid, back), s.x.shape()));
  }
  if (g.wants(kOffset)) g.set(kOffset, offset_gradient(s, grid_sample_backward_grid(grad, images, grid, {})));
}

/// The products of the convolution; four reads and multiplications for each tap that is sampled.
Cost cost(const OpContext& c) {
  const Shape& weight = c.in(kWeight).shape;
  const double outputs = static_cast<double>(c.out(0).elements()), taps = static_cast<double>(weight[2] * weight[3]);
  const double of_channels = outputs / static_cast<double>(std::max<int64_t>(1, weight[0])) * static_cast<double>(c.in(kX).shape[1]);
  return operand_cost(c, 2 * outputs * taps * static_cast<double>(weight[1]) + 8 * of_channels * taps);
}

}  // namespace

void DeformConv2dAttrs::options(OptionVisitor& v) { window_options(v, *this); }

const OpDef& deform_conv2d_op() {
  static const OpDef def{.name = "deform_conv2d",
                         .doc = "a convolution whose taps are moved by given offsets (Dai et al. 2017, Zhu et al. 2019)",
                         .inputs = {"x", "offset", Port::weight("weight"), Port::statistics("bias?"), "mask?"},
                         .outputs = {"y"},
                         .make_attrs = make_options<DeformConv2dAttrs>,
                         .infer = infer,
                         .gradient = gradient,
                         .cost = cost,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = define,
                         .cases = {"deform_conv2d:1x256x50x68+1x18x50x68+256x256x3x3:padding=1"}};
  return def;
}

Value deform_conv2d(Value x, Value offset, Value weight, const DeformConv2dAttrs& attrs, Value bias, Value mask) {
  return emit("deform_conv2d", {x, offset, weight, bias, mask}, attrs);
}

OpTable deform_conv_ops() { return {&deform_conv2d_op()}; }

}  // namespace galley
