#include "libcore/nn/detection_parts.h"

#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/ops/conv_rows.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/detection.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/index.h"

namespace galley {
namespace {

constexpr int64_t kPyramidChannels = 256;
constexpr double kGiouEps = 1e-7;

Value area_of(Value width, Value height) { return mul(width, height); }

/// A convolution of the pyramid, with its initial values.
Value pyramid_conv(Builder& b, std::string_view name, Value x, int64_t kernel, int64_t stride = 1, bool bias = true) {
  const auto init = b.use_init({.conv_weight = Init::kaiming_uniform(1), .conv_bias = Init::zeros()});
  return b.conv2d(name, x,
                  {.out_channels = kPyramidChannels, .kernel_size = kernel, .stride = stride, .padding = kernel / 2, .bias = bias});
}

/// A block of the pyramid: a convolution, and a norm.
Value pyramid_block(Builder& b, std::string_view name, Value x, int64_t kernel, bool norm) {
  const auto module = b.scope(name);
  x = pyramid_conv(b, "0", x, kernel, 1, !norm);
  return norm ? b.batch_norm("1", x) : x;
}

}  // namespace

void BackboneParams::options(OptionVisitor& v) {
  v.option({.name = "frozen_norm",
            .doc = "batch norms of the backbone are constants (weight and bias are buffers), as in torchvision's models with weights"},
           frozen_norm);
  v.option({.name = "frozen_eps", .doc = "epsilon of frozen batch norms; 0 in some published models", .min = 0}, frozen_eps);
  v.option({.name = "trainable_backbone_layers",
            .doc = "stages of the backbone that are trained, from the last; null: 3 with frozen norms, otherwise all",
            .min = 0,
            .max = 6},
           trainable_backbone_layers);
}

BackboneOptions BackboneParams::backbone() const {
  BackboneOptions options;
  if (frozen_norm) options.norm.frozen_eps = frozen_eps;
  options.trainable_layers = trainable_backbone_layers.value_or(frozen_norm ? 3 : 6);
  return options;
}

SharedConv::SharedConv(Builder& b, std::string_view name, int64_t in_channels, const Conv2dOptions& options, const Init& weight,
                       const Init& bias)
    : options_(options) {
  const auto module = b.scope(name);
  weight_ = b.parameter("weight", {options.out_channels, in_channels, options.kernel_size.h, options.kernel_size.w}, weight, "conv2d");
  if (options.bias) bias_ = b.parameter("bias", {options.out_channels}, bias, "conv2d");
}

Conv2dAttrs SharedConv::attrs() const {
  Conv2dAttrs attrs;
  attrs.stride = options_.stride.list();
  attrs.padding = options_.padding.list();
  return attrs;
}

Value SharedConv::operator()(Value x) const { return conv2d(x, weight_, bias_, attrs()); }

Value SharedConv::first_images(Value x, Value count, Activation activation) const {
  Conv2dAttrs own = attrs();
  own.activation = activation;
  return conv2d_rows(x, weight_, bias_, count, own);
}

std::vector<Value> feature_pyramid(Builder& b, const std::vector<Value>& features, ExtraLevels extra, bool norm) {
  const auto module = b.scope("fpn");
  std::vector<Value> levels(features.size());
  Value above;
  for (size_t i = features.size(); i-- > 0;) {
    const auto number = std::to_string(i);
    Value inner = pyramid_block(b, "inner_blocks." + number, features[i], 1, norm);
    if (above) {
      ResizeAttrs attrs;
      attrs.size = {inner.shape()[2], inner.shape()[3]};
      attrs.mode = ResizeMode::kNearest;
      inner = add(inner, resize(above, attrs));
    }
    above = inner;
    levels[i] = pyramid_block(b, "layer_blocks." + number, inner, 3, norm);
  }
  if (extra == ExtraLevels::kPool) {
    levels.push_back(max_pool(levels.back(), {.kernel_size = 1, .stride = 2}));
    return levels;
  }
  const auto blocks = b.scope("extra_blocks");
  const Value sixth = pyramid_conv(b, "p6", extra == ExtraLevels::kFromC5 ? features.back() : levels.back(), 3, 2);
  levels.push_back(sixth);
  levels.push_back(pyramid_conv(b, "p7", relu(sixth), 3, 2));
  return levels;
}

std::vector<Value> resnet50_pyramid(Builder& b, const BackboneParams& params, const std::vector<size_t>& stages, ExtraLevels extra, Value x,
                                    bool norm) {
  const auto module = b.scope("backbone");
  std::vector<Value> features;
  {
    const auto body = b.scope("body");
    const std::vector<Value> all = resnet_stages(b, ResNetDepth::k50, {0, 0, 0}, x, params.backbone());
    for (const size_t stage : stages) features.push_back(all[stage]);
  }
  return feature_pyramid(b, features, extra, norm);
}

std::vector<Value> mobilenet_v3_large_pyramid(Builder& b, const BackboneParams& params, Value x) {
  const auto module = b.scope("backbone");
  std::vector<Value> features;
  {
    const auto body = b.scope("body");
    const std::vector<Value> all = mobilenet_v3_large_features(b, false, x, params.backbone());
    features = {all[13], all[16]};
  }
  return feature_pyramid(b, features, ExtraLevels::kPool);
}

Value AnchorRule::boxes(Graph& graph, const Shape& image, Value feature, size_t level) const {
  const int64_t rows = feature.shape()[2], columns = feature.shape()[3];
  GridBoxesAttrs attrs;
  attrs.grid = {rows, columns};
  attrs.strides = {static_cast<double>(image[2] / rows), static_cast<double>(image[3] / columns)};
  attrs.per_cell = {per_cell()};
  for (const double ratio : ratios) {
    for (const double size : sizes[level]) {
      const double w = std::nearbyint(size / std::sqrt(ratio) / 2), h = std::nearbyint(size * std::sqrt(ratio) / 2);
      attrs.corners.insert(attrs.corners.end(), {-w, -h, w, h});
    }
  }
  return grid_boxes(graph, attrs);
}

namespace {

constexpr int64_t kRounded = 32;  // sizes of images are rounded up to multiples of this

/// Row and column, as (column, row, column, row), of the cell of each anchor of a level: [A,4].
Value cells_of(Graph& graph, const AnchorRule& rule, Value feature) {
  GridBoxesAttrs attrs;
  attrs.grid = {feature.shape()[2], feature.shape()[3]};
  attrs.strides = {1, 1};
  attrs.per_cell = {rule.per_cell()};
  attrs.corners.assign(static_cast<size_t>(4 * rule.per_cell()), 0);
  return grid_boxes(graph, attrs);
}

/// Column i of [N,2] as [N,1], in f32.
Value axis_of_images(Value sizes, int64_t i) { return slice(cast(sizes, DType::kF32), 1, i, i + 1); }

/// Boxes [A,4], whose cells are `stride` (rows, columns) apart, with the strides of each image: [N,A,4].
Value with_own_strides(Value boxes, Value cells, std::array<double, 2> stride, Value extents, Value grid) {
  const auto difference = [&](int64_t axis) {
    const Value at_least_one = clamp(axis_of_images(grid, axis), 1, std::numeric_limits<double>::infinity());
    const Value own = emit("floor", {div(affine(axis_of_images(extents, axis), 1, 0.5), at_least_one)});
    return affine(own, 1, -stride[static_cast<size_t>(axis)]);
  };
  const Value x = difference(1), y = difference(0);
  const Value moves = unsqueeze(concat({x, y, x, y}, 1), 1);
  return add(unsqueeze(boxes, 0), mul(unsqueeze(cells, 0), moves));
}

}  // namespace

Anchors::Anchors(Graph& graph, const AnchorRule& rule, const ImageSize& image, const std::vector<Value>& features,
                 const std::vector<int64_t>& strides) {
  const Shape array{1, 1, image.height, image.width};
  for (size_t level = 0; level < features.size(); ++level) {
    boxes.push_back(rule.boxes(graph, array, features[level], level));
    if (!image.extents) continue;
    ExtentsAfterAttrs after;
    after.stride = {strides[level]};
    const Value grid = extents_after(image.extents, after), cells = cells_of(graph, rule, features[level]);
    const auto cell = [&](int64_t i) { return reshape(column(cells, i), {1, cells.shape()[0]}); };
    const Value room = minimum(sub(axis_of_images(grid, 1), cell(0)), sub(axis_of_images(grid, 0), cell(1)));
    grids.push_back(grid);
    inside.push_back(greater(room, constant_like(room, 0.5)));
    const Shape& s = features[level].shape();
    const std::array<double, 2> stride{static_cast<double>(image.height / s[2]), static_cast<double>(image.width / s[3])};
    const bool whole = image.height % kRounded == 0 && image.width % kRounded == 0 && kRounded % strides[level] == 0;
    if (!whole) boxes.back() = with_own_strides(boxes.back(), cells, stride, image.extents, grid);
  }
}

Value Anchors::joined() const {
  if (inside.empty()) return join(boxes, 0);
  std::vector<Value> all;
  for (size_t level = 0; level < boxes.size(); ++level) {
    const Value from = boxes[level], mask = unsqueeze(inside[level], 2);
    const Value side = cast(iota(from.graph(), DType::kI64, {1, 1, 4}, 2), from.dtype());
    // The box (-10000, -10000, -9999, -9999), whose code relative to itself is 0.
    const Value far = affine(cast(greater(side, constant_like(side, 1.5)), from.dtype()), 1, -10000);
    all.push_back(where(mask, from.shape().rank() == 3 ? from : unsqueeze(from, 0), far));
  }
  return join(all, 1);
}

Value Anchors::own(Value labels) const {
  if (inside.empty()) return labels;
  const Value values = cast(labels, DType::kF32);
  return cast(where(join(inside, 1), values, constant_like(values, -1)), DType::kI64);
}

Value Anchors::logits(size_t level, Value x) const { return grids.empty() ? x : fill_outside(x, grids[level], kNever); }

Value giou_loss(Value boxes, Value target) {
  const auto most = std::numeric_limits<double>::infinity();
  const auto corner = [&](Value (*choose)(Value, Value), int64_t i) { return choose(column(boxes, i), column(target, i)); };
  const auto side = [](Value box, int64_t i) { return sub(column(box, i + 2), column(box, i)); };
  const Value width = clamp(sub(corner(minimum, 2), corner(maximum, 0)), 0, most);
  const Value height = clamp(sub(corner(minimum, 3), corner(maximum, 1)), 0, most);
  const Value both = area_of(width, height);
  const Value all = sub(add(area_of(side(boxes, 0), side(boxes, 1)), area_of(side(target, 0), side(target, 1))), both);
  const Value around = area_of(sub(corner(maximum, 2), corner(minimum, 0)), sub(corner(maximum, 3), corner(minimum, 1)));
  const Value iou = div(both, affine(all, 1, kGiouEps));
  return affine(sub(iou, div(sub(around, all), affine(around, 1, kGiouEps))), -1, 1);
}

MatchBoxesAttrs matching(std::string_view prefix, double object, double background) {
  GALLEY_CHECK(background <= object, prefix, "bg_iou_thresh=", background, " must not be higher than ", prefix, "fg_iou_thresh=", object);
  MatchBoxesAttrs attrs;
  attrs.high = object;
  attrs.low = background;
  return attrs;
}

Value join(const std::vector<Value>& values, int64_t axis) {
  ConcatAttrs attrs;
  attrs.axis = axis;
  return concat(values, attrs);
}

Value in_columns(Value scores, Value labels, int64_t classes) {
  const Value own = greater(one_hot(labels, classes), constant_like(scores, 0.5));
  return where(own, unsqueeze(scores, 2), constant_like(scores, -1));
}

}  // namespace galley
