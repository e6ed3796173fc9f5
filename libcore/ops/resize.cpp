#include "libcore/ops/resize.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

void check_resize(const TensorType& x, const std::vector<int64_t>& size, std::string_view name, ResizeMode mode, bool align_corners) {
  if (mode == ResizeMode::kBilinear) check_floating(x, "x");  // nearest copies elements of any dtype
  GALLEY_CHECK(x.shape.rank() == 4, "the input must be [N,C,H,W], not ", x);
  GALLEY_CHECK(size.size() == 2 && size[0] >= 1 && size[1] >= 1, name, " must be two sizes of at least 1 (rows, columns)");
  GALLEY_CHECK(x.shape[2] >= 1 && x.shape[3] >= 1, "an empty image cannot be resized: ", x);
  GALLEY_CHECK(mode == ResizeMode::kBilinear || !align_corners, "align_corners needs mode bilinear");
}

std::vector<TensorType> with_image_size(const TensorType& x, const std::vector<int64_t>& size) {
  TensorType y = x;
  y.format = {};
  y.shape[2] = size[0];
  y.shape[3] = size[1];
  return {y};
}

}  // namespace

void ResizeAttrs::options(OptionVisitor& v) {
  v.option({.name = "size", .doc = "rows and columns of the output", .min = 1, .required = true}, size);
  v.choice({.name = "mode", .doc = "interpolation"}, mode, kResizeModeNames);
  v.option({.name = "align_corners", .doc = "align the centers of the corner pixels (bilinear)"}, align_corners);
}
void ResizeBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "input_size", .doc = "rows and columns of the input of the forward operator", .min = 1, .required = true}, input_size);
  v.choice({.name = "mode", .doc = "interpolation"}, mode, kResizeModeNames);
  v.option({.name = "align_corners", .doc = "align the centers of the corner pixels (bilinear)"}, align_corners);
}

ResizeSource resize_source(int64_t out, int64_t in_size, int64_t out_size, ResizeMode mode, bool align_corners) {
  ResizeSource source;
  if (mode == ResizeMode::kNearest) {
    source.low = source.high = std::min(out * in_size / out_size, in_size - 1);
    return source;
  }
  double position = 0;
  if (align_corners) {
    position = out_size > 1 ? static_cast<double>(out * (in_size - 1)) / static_cast<double>(out_size - 1) : 0;
  } else {
    const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
    position = std::max(0.0, (static_cast<double>(out) + 0.5) * scale - 0.5);
  }
  source.low = std::min(static_cast<int64_t>(std::floor(position)), in_size - 1);
  source.high = std::min(source.low + 1, in_size - 1);
  source.fraction = position - static_cast<double>(source.low);
  return source;
}

const OpDef& resize_op() {
  static const OpDef def{.name = "resize",
                         .doc = "resamples images, bilinear or nearest, as torch.nn.functional.interpolate without antialias",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ResizeAttrs>,
                         .infer =
                             [](const OpContext& c) {
                               const auto& attrs = c.attrs<ResizeAttrs>();
                               check_resize(c.in(0), attrs.size, "size", attrs.mode, attrs.align_corners);
                               return with_image_size(c.in(0), attrs.size);
                             },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               const auto& forward = g.attrs<ResizeAttrs>();
                               ResizeBackwardAttrs attrs;
                               attrs.input_size = {g.in(0).shape()[2], g.in(0).shape()[3]};
                               attrs.mode = forward.mode;
                               attrs.align_corners = forward.align_corners;
                               g.set(0, resize_backward(g.grad(), attrs));
                             },
                         .cost = elementwise_cost<7>,
                         .layout = {.prefers_channels_last = true},
                         .quantize = QuantizeRule::kPassThrough,
                         .quantizable = [](const OpContext& c) { return c.attrs<ResizeAttrs>().mode == ResizeMode::kNearest; },
                         .cases = {"resize:16x3x256x256:size=[224,224]"}};
  return def;
}
const OpDef& resize_backward_op() {
  static const OpDef def{.name = "resize_backward",
                         .doc = "adds the gradient of each output pixel to the input pixels that it depends on",
                         .inputs = {"grad"},
                         .outputs = {"dx"},
                         .make_attrs = make_options<ResizeBackwardAttrs>,
                         .infer =
                             [](const OpContext& c) {
                               const auto& attrs = c.attrs<ResizeBackwardAttrs>();
                               check_resize(c.in(0), attrs.input_size, "input_size", attrs.mode, attrs.align_corners);
                               return with_image_size(c.in(0), attrs.input_size);
                             },
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<8>,
                         .layout = {.prefers_channels_last = true},
                         .cases = {"resize_backward:16x64x56x56:input_size=[28,28]"}};
  return def;
}
Value resize(Value x, const ResizeAttrs& attrs) { return emit("resize", {x}, attrs); }
Value resize_backward(Value grad, const ResizeBackwardAttrs& attrs) { return emit("resize_backward", {grad}, attrs); }

}  // namespace galley
