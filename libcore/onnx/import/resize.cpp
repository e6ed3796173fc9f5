// Imports Resize and Upsample: as Galley's resize operator if it supports the form, otherwise as one matrix product per axis.

#include "libcore/ops/resize.h"

#include <algorithm>
#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargestImage = int64_t{1} << 20;  // limit of an output size
constexpr int64_t kMaxWeights = int64_t{1} << 24;    // limit of elements of an axis's matrix

/// How output coordinates map to the input and how the input is sampled.
struct Resizing {
  std::string mode, coordinates, nearest;
  double cubic_a = -0.75, outside_value = 0;
  bool exclude_outside = false;
};
/// One axis.
struct Axis {
  int64_t in = 0, out = 0;
  double scale = 1;           // out / in, as given in the file
  double begin = 0, end = 1;  // region of interest
};

/// The input coordinate of output element o (onnx, Resize, coordinate_transformation_mode).
double position_of(const Call& c, const Resizing& resizing, const Axis& axis, int64_t o) {
  const auto x = static_cast<double>(o), in = static_cast<double>(axis.in), out = static_cast<double>(axis.out);
  if (resizing.coordinates == "half_pixel") return (x + 0.5) / axis.scale - 0.5;
  if (resizing.coordinates == "pytorch_half_pixel") return axis.out > 1 ? (x + 0.5) / axis.scale - 0.5 : 0;
  if (resizing.coordinates == "align_corners") return axis.out > 1 ? x * (in - 1) / (out - 1) : 0;
  if (resizing.coordinates == "asymmetric") return x / axis.scale;
  if (resizing.coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / axis.scale;
  if (resizing.coordinates == "tf_crop_and_resize") {
    return axis.out > 1 ? axis.begin * (in - 1) + x * (axis.end - axis.begin) * (in - 1) / (out - 1)
                        : 0.5 * (axis.begin + axis.end) * (in - 1);
  }
  if (resizing.coordinates == "half_pixel_symmetric") {
    const double center = in / 2, kept = out / (axis.scale * in);
    return center * (1 - kept) + (x + 0.5) / axis.scale - 0.5;
  }
  c.refuse(cat("coordinate_transformation_mode '", resizing.coordinates, "' is not supported"));
}

int64_t nearest_of(const Call& c, const Resizing& resizing, double x) {
  if (resizing.nearest == "floor") return static_cast<int64_t>(std::floor(x));
  if (resizing.nearest == "ceil") return static_cast<int64_t>(std::ceil(x));
  if (resizing.nearest == "round_prefer_floor") return static_cast<int64_t>(std::ceil(x - 0.5));
  if (resizing.nearest == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
  c.refuse(cat("nearest_mode '", resizing.nearest, "' is not supported"));
}

/// Cubic convolution kernel (Keys 1981, Cubic Convolution Interpolation for Digital Image Processing).
double cubic_weight(double distance, double a) {
  const double d = std::fabs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

/// The weights of the input's elements for output element o.
std::vector<double> weights_of(const Call& c, const Resizing& resizing, const Axis& axis, int64_t o) {
  std::vector<double> weights(static_cast<size_t>(axis.in), 0);
  const double x = position_of(c, resizing, axis, o);
  const auto add = [&](int64_t i, double weight) { weights[static_cast<size_t>(std::clamp<int64_t>(i, 0, axis.in - 1))] += weight; };
  if (resizing.mode == "nearest") {
    add(nearest_of(c, resizing, x), 1);
    return weights;
  }
  const auto low = static_cast<int64_t>(std::floor(x));
  if (resizing.mode == "linear") {
    add(low, 1 - (x - std::floor(x)));
    add(low + 1, x - std::floor(x));
    return weights;
  }
  double sum = 0;
  for (int64_t i = low - 1; i <= low + 2; ++i) {
    const double weight = cubic_weight(x - static_cast<double>(i), resizing.cubic_a);
    if (resizing.exclude_outside && (i < 0 || i >= axis.in)) continue;
    add(i, weight);
    sum += weight;
  }
  for (double& weight : weights) weight /= resizing.exclude_outside ? sum : 1;
  return weights;
}

/// Resizes one axis by a product with a constant matrix.
Value resize_axis(const Call& c, const Resizing& resizing, Value x, int at, const Axis& axis) {
  GALLEY_CHECK_INPUT(axis.in * axis.out <= kMaxWeights, "it resizes an axis from ", axis.in, " to ", axis.out,
                     " in a mode that needs a matrix of weights, which is limited to ", kMaxWeights, " elements");
  std::vector<double> all;
  for (int64_t o = 0; o < axis.out; ++o) {
    const double position = position_of(c, resizing, axis, o);
    const bool outside = resizing.coordinates == "tf_crop_and_resize" && !(position >= 0 && position <= static_cast<double>(axis.in - 1));
    if (outside) c.refuse("it reads outside its input (tf_crop_and_resize with extrapolation_value), which is not supported");
    const std::vector<double> weights = weights_of(c, resizing, axis, o);
    all.insert(all.end(), weights.begin(), weights.end());
  }
  Tensor matrix(DType::kF32, {axis.out, axis.in});
  matrix.from_doubles(all);
  const int last = x.shape().rank() - 1;
  const Value transposed = at == last ? x : transpose(x, at, last);
  const Value y = matmul(transposed, c.table(matrix), {false, true});
  return at == last ? y : transpose(y, at, last);
}

/// The attributes of Galley's resize operator, or nullopt if it does not support this form.
std::optional<ResizeAttrs> operator_attributes(const Resizing& resizing, Value x, const std::vector<Axis>& axes) {
  if (x.shape().rank() != 4 || axes[0].in != axes[0].out || axes[1].in != axes[1].out) return std::nullopt;
  ResizeAttrs attrs;
  attrs.size = {axes[2].out, axes[3].out};
  // The operator's scale is the ratio of the sizes.
  for (size_t i : {2u, 3u}) {
    const double scale = static_cast<double>(axes[i].out) / static_cast<double>(axes[i].in);
    if (resizing.coordinates != "align_corners" && std::fabs(scale - axes[i].scale) > 1e-7 * scale) return std::nullopt;
  }
  if (resizing.mode == "nearest" && resizing.coordinates == "asymmetric" && resizing.nearest == "floor") {
    attrs.mode = ResizeMode::kNearest;
    return attrs;
  }
  const bool half =
      resizing.coordinates == "half_pixel" || (resizing.coordinates == "pytorch_half_pixel" && attrs.size[0] > 1 && attrs.size[1] > 1);
  if (resizing.mode != "linear" || (!half && resizing.coordinates != "align_corners")) return std::nullopt;
  attrs.align_corners = resizing.coordinates == "align_corners";
  return attrs;
}

/// Sizes and scales of all axes, from the node's scales or sizes.
std::vector<Axis> axes_of_node(Call& c, const Shape& shape, const std::optional<Tensor>& scales, const std::vector<int64_t>& sizes,
                               const std::vector<double>& region) {
  const int rank = shape.rank();
  std::vector<int64_t> named = c.ints("axes", {});
  if (named.empty()) {
    for (int axis = 0; axis < rank; ++axis) named.push_back(axis);
  }
  std::vector<Axis> axes;
  for (int axis = 0; axis < rank; ++axis) axes.push_back({.in = shape[axis], .out = shape[axis]});
  const std::vector<double> factors = scales ? scales->to_doubles() : std::vector<double>();
  GALLEY_CHECK_INPUT((scales ? factors.size() : sizes.size()) == named.size(), "it has ", scales ? factors.size() : sizes.size(), " ",
                     scales ? "scales" : "sizes", " for ", named.size(), " axes");
  for (size_t i = 0; i < named.size(); ++i) {
    Axis& axis = axes[static_cast<size_t>(axis_in(named[i], rank))];
    GALLEY_CHECK_INPUT(axis.in >= 1, "an empty axis cannot be resized: ", shape);
    if (scales) {
      GALLEY_CHECK_INPUT(factors[i] > 0 && factors[i] < 1e4, "a scale is ", factors[i], ", but must be greater than 0 and less than 10000");
      axis.scale = factors[i];
      axis.out = static_cast<int64_t>(std::floor(static_cast<double>(axis.in) * factors[i]));
    } else {
      axis.out = sizes[i];
      axis.scale = static_cast<double>(axis.out) / static_cast<double>(axis.in);
    }
    GALLEY_CHECK_INPUT(axis.out >= 1 && axis.out <= kLargestImage, "an output size is ", axis.out, ", but must be between 1 and ",
                       kLargestImage);
    if (region.size() == 2 * named.size()) {
      axis.begin = region[i];
      axis.end = region[named.size() + i];
    }
  }
  return axes;
}

void resize_value(Call& c, const Resizing& resizing, const std::optional<Tensor>& scales, const std::vector<int64_t>& sizes,
                  const std::vector<double>& region) {
  Value x = c.x(0);
  const std::vector<Axis> axes = axes_of_node(c, x.shape(), scales, sizes, region);
  if (resizing.mode != "nearest" && resizing.mode != "linear" && resizing.mode != "cubic")
    c.refuse(cat("mode '", resizing.mode, "' is not supported"));
  for (const Axis& axis : axes) {
    // The operator's definition uses the size before rounding down, run times use the size after.
    const double exact = static_cast<double>(axis.in) * axis.scale;
    if (resizing.coordinates == "align_corners" && std::fabs(exact - std::round(exact)) > 1e-3)
      c.refuse(cat("align_corners with a scale of ", axis.scale, " gives ", exact, " elements, which is not a whole number"),
               "export it with sizes instead of scales");
  }
  if (const auto own = operator_attributes(resizing, x, axes)) return c.set(resize(x, *own));
  if (!is_floating(x.dtype())) c.refuse(cat("its input is ", x.type(), ", but this mode supports only floating-point inputs"));
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool same = axes[i].in == axes[i].out && axes[i].scale == 1 && resizing.coordinates != "tf_crop_and_resize";
    if (!same) x = resize_axis(c, resizing, x, static_cast<int>(i), axes[i]);
  }
  c.set(x);
}

std::optional<Tensor> known_scales(Call& c, size_t i) {
  if (!c.has(i)) return std::nullopt;
  const std::optional<Tensor> scales = c.constant(i);
  GALLEY_CHECK_INPUT(scales.has_value(), "its scales must be constant");
  if (scales->elements() == 0) return std::nullopt;
  GALLEY_CHECK_INPUT(is_floating(scales->dtype()) && scales->elements() <= Shape::kMaxRank, "its scales are ", scales->str(),
                     ", but must be a floating-point list with at most ", Shape::kMaxRank, " elements");
  return scales;
}

void resize_node(Call& c) {
  const bool old = c.opset() < 11;  // before opset 11 it has the inputs of Upsample
  Resizing resizing{.mode = c.text("mode", "nearest"),
                    .coordinates = old ? "asymmetric" : c.text("coordinate_transformation_mode", "half_pixel"),
                    .nearest = old ? "floor" : c.text("nearest_mode", "round_prefer_floor")};
  resizing.cubic_a = c.real("cubic_coeff_a", -0.75);
  resizing.outside_value = c.real("extrapolation_value", 0);
  resizing.exclude_outside = c.integer("exclude_outside", 0) != 0;
  if (c.integer("antialias", 0) != 0) c.refuse("antialias=1 is not supported");
  if (c.text("keep_aspect_ratio_policy", "stretch") != "stretch") c.refuse("keep_aspect_ratio_policy must be stretch");
  if (old) return resize_value(c, resizing, known_scales(c, 1), {}, {});
  std::vector<double> region;
  if (resizing.coordinates == "tf_crop_and_resize") {
    const std::optional<Tensor> given = c.constant(1);
    GALLEY_CHECK_INPUT(given.has_value() && given->elements() <= 2 * Shape::kMaxRank, "its region (roi) must be constant");
    region = given->to_doubles();
  }
  const std::optional<Tensor> scales = known_scales(c, 2);
  GALLEY_CHECK_INPUT(scales.has_value() || c.has(3), "it has neither scales nor sizes");
  std::vector<int64_t> sizes = scales ? std::vector<int64_t>() : c.ints(3);
  // A file exported for a fixed batch contains the batch in its sizes.
  const auto declared = c.to.other_batch();
  if (declared && c.find("axes") == nullptr && !sizes.empty() && sizes[0] == *declared && c.to.has_batch_size(c.node, true))
    sizes[0] = *c.to.batch();
  resize_value(c, resizing, scales, sizes, region);
}

void upsample_node(Call& c) {
  const Resizing resizing{.mode = c.text("mode", "nearest"), .coordinates = "asymmetric", .nearest = "floor"};
  if (c.has(1)) return resize_value(c, resizing, known_scales(c, 1), {}, {});
  const OnnxAttribute* scales = c.find("scales");
  GALLEY_CHECK_INPUT(scales != nullptr && scales->floats.size() <= static_cast<size_t>(Shape::kMaxRank), "it has no scales");
  Tensor list(DType::kF32, {static_cast<int64_t>(scales->floats.size())});
  list.from_doubles(scales->floats);
  resize_value(c, resizing, list, {}, {});
}

}  // namespace

MakeTable resize_rows() { return {{"Resize", resize_node}, {"Upsample", upsample_node}}; }

}  // namespace galley::onnx_import
