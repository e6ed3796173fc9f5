#include "libcore/ops/roi_align.h"

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr int kExtents = 3;
constexpr size_t kCoarser = 4;  // the first input of the further levels

void check_regions(const OpContext& c, int64_t samples) {
  const TensorType& boxes = c.in(1);
  check_floating(boxes, "boxes");
  GALLEY_CHECK(boxes.shape.rank() == 3 && boxes.shape[0] == samples && boxes.shape[2] == 4, "boxes must be [", samples, ",R,4], not ",
               boxes);
  if (c.has(2)) {
    GALLEY_CHECK(c.in(2).dtype == DType::kI64 && c.in(2).shape == Shape{samples}, "count must be i64 ", Shape{samples}, ", not ", c.in(2));
  }
}

void check_level_extents(const OpContext& c, int64_t samples, int64_t levels) {
  if (!c.has(kExtents)) return;
  const TensorType& extents = c.in(kExtents);
  GALLEY_CHECK(extents.dtype == DType::kI64 && extents.shape == Shape({samples, 2 * levels}), "extents must be i64 ",
               Shape({samples, 2 * levels}), ", not ", extents);
}

void check_attrs(const std::vector<int64_t>& size, std::string_view name, const std::vector<double>& scales) {
  GALLEY_CHECK(size.size() == 2, name, " needs two values (rows, columns), but has ", size.size());
  for (const double scale : scales) GALLEY_CHECK(scale > 0, "spatial_scale is ", scale, "; it must be positive");
}

std::vector<TensorType> infer(const OpContext& c) {
  const auto& attrs = c.attrs<RoiAlignAttrs>();
  const TensorType& x = c.in(0);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 4, "x must be [N,C,H,W], not ", x);
  check_attrs(attrs.output_size, "output_size", attrs.spatial_scale);
  check_regions(c, x.shape[0]);
  const size_t levels = std::max(c.inputs.size(), kCoarser) - kCoarser + 1;
  GALLEY_CHECK(attrs.spatial_scale.size() == levels, "spatial_scale needs a value for each of ", levels, " levels, but has ",
               attrs.spatial_scale.size());
  for (size_t i = kCoarser; i < c.inputs.size(); ++i) {
    const TensorType& level = c.in(static_cast<int>(i));
    GALLEY_CHECK(level.dtype == x.dtype && level.shape.rank() == 4 && level.shape[0] == x.shape[0] && level.shape[1] == x.shape[1],
                 "all levels must be ", x.dtype, " [", x.shape[0], ",", x.shape[1], ",H,W], not ", level);
  }
  TensorType y = x;
  y.format = {};
  y.names = {};
  y.shape = {x.shape[0], c.in(1).shape[1], x.shape[1], attrs.output_size[0], attrs.output_size[1]};
  check_level_extents(c, x.shape[0], static_cast<int64_t>(levels));
  return {y};
}

std::vector<TensorType> infer_backward(const OpContext& c) {
  const auto& attrs = c.attrs<RoiAlignBackwardAttrs>();
  const TensorType& grad = c.in(0);
  check_floating(grad, "grad");
  GALLEY_CHECK(grad.shape.rank() == 5, "grad must be [N,R,C,h,w], not ", grad);
  check_attrs(attrs.input_size, "input_size", attrs.spatial_scale);
  check_regions(c, grad.shape[0]);
  GALLEY_CHECK(attrs.level >= 0 && attrs.level < std::ssize(attrs.spatial_scale), "level ", attrs.level, " does not exist; x has ",
               attrs.spatial_scale.size());
  check_level_extents(c, grad.shape[0], std::ssize(attrs.spatial_scale));
  TensorType dx = grad;
  dx.format = {};
  dx.names = {};
  dx.shape = {grad.shape[0], grad.shape[2], attrs.input_size[0], attrs.input_size[1]};
  return {dx};
}

void gradient(GradientBuilder& g) {
  const auto& forward = g.attrs<RoiAlignAttrs>();
  RoiAlignBackwardAttrs attrs;
  attrs.spatial_scale = forward.spatial_scale;
  attrs.sampling_ratio = forward.sampling_ratio;
  attrs.aligned = forward.aligned;
  for (; attrs.level < std::ssize(forward.spatial_scale); ++attrs.level) {
    const size_t input = attrs.level == 0 ? 0 : kCoarser + static_cast<size_t>(attrs.level) - 1;
    if (!g.wants(input)) continue;
    attrs.input_size = {g.in(input).shape()[2], g.in(input).shape()[3]};
    g.set(input, emit("roi_align_backward", {g.grad(), g.in(1), g.in(2), g.in(kExtents)}, attrs));
  }
}

/// Four multiply-adds for each of about four samples per bin.
Cost cost_of_bins(const OpContext& c, const TensorType& bins) { return operand_cost(c, 32 * static_cast<double>(bins.elements())); }

}  // namespace

void RoiAlignAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of bins", .min = 1}, output_size);
  v.option({.name = "spatial_scale", .doc = "size of each level relative to the image of the boxes"}, spatial_scale);
  v.option({.name = "sampling_ratio", .doc = "samples per bin and axis; 0: as many as the bin has pixels, rounded up", .min = 0},
           sampling_ratio);
  v.option({.name = "aligned", .doc = "shift boxes by half a pixel, so that pixels are at their centers"}, aligned);
}
void RoiAlignBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "input_size", .doc = "rows and columns of the level", .min = 1, .required = true}, input_size);
  v.option({.name = "spatial_scale", .doc = "size of each level relative to the image of the boxes"}, spatial_scale);
  v.option({.name = "sampling_ratio", .doc = "samples per bin and axis; 0: as many as the bin has pixels, rounded up", .min = 0},
           sampling_ratio);
  v.option({.name = "aligned", .doc = "shift boxes by half a pixel, so that pixels are at their centers"}, aligned);
  v.option({.name = "level", .doc = "the level whose gradient it is", .min = 0}, level);
}

RoiAxis roi_axis(double low, double high, int64_t bins, double spatial_scale, int64_t sampling_ratio, bool aligned) {
  const double offset = aligned ? 0.5 : 0;
  double size = high * spatial_scale - low * spatial_scale;
  if (!aligned) size = std::max(size, 1.0);  // the published operator forces regions of at least a pixel
  RoiAxis axis{.start = low * spatial_scale - offset, .bin = size / static_cast<double>(bins)};
  axis.samples = sampling_ratio > 0 ? sampling_ratio : static_cast<int64_t>(std::ceil(axis.bin));
  return axis;
}

RoiSample roi_sample(double position, int64_t size) {
  if (!(position >= -1.0 && position <= static_cast<double>(size))) return {};
  position = std::max(position, 0.0);
  RoiSample sample{.inside = true, .low = static_cast<int64_t>(position)};
  if (sample.low >= size - 1) {
    sample.low = sample.high = size - 1;
    return sample;
  }
  sample.high = sample.low + 1;
  sample.fraction = position - static_cast<double>(sample.low);
  return sample;
}

const OpDef& roi_align_op() {
  static const OpDef def{.name = "roi_align",
                         .doc = "means of bilinear samples in the bins of regions (He et al. 2017)",
                         .inputs = {"x", "boxes", Port::index("count?"), Port::index("extents?"), "coarser*"},
                         .outputs = {"y"},
                         .make_attrs = make_options<RoiAlignAttrs>,
                         .infer = infer,
                         .gradient = gradient,
                         .cost = [](const OpContext& c) { return cost_of_bins(c, c.out(0)); },
                         .layout = {FormatRule::kExplicit},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"roi_align:1x256x50x68+1x1000x4:spatial_scale=0.0625,sampling_ratio=2"}};
  return def;
}
const OpDef& roi_align_backward_op() {
  static const OpDef def{.name = "roi_align_backward",
                         .doc = "adds the gradient of each bin to the pixels that it depends on",
                         .inputs = {"grad", "boxes", Port::index("count?"), Port::index("extents?")},
                         .outputs = {"dx"},
                         .make_attrs = make_options<RoiAlignBackwardAttrs>,
                         .infer = infer_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = [](const OpContext& c) { return cost_of_bins(c, c.in(0)); },
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"roi_align_backward:1x512x256x7x7+1x512x4:input_size=[50,68],spatial_scale=0.0625,sampling_ratio=2"}};
  return def;
}

Value roi_align(Value x, Value boxes, const RoiAlignAttrs& attrs, Value count, const std::vector<Value>& coarser) {
  std::vector<Value> inputs{x, boxes, count, {}};
  inputs.insert(inputs.end(), coarser.begin(), coarser.end());
  return emit_all("roi_align", std::make_unique<RoiAlignAttrs>(attrs), inputs).front();
}
Value roi_align_backward(Value grad, Value boxes, const RoiAlignBackwardAttrs& attrs, Value count) {
  return emit("roi_align_backward", {grad, boxes, count}, attrs);
}

OpTable roi_align_ops() { return {&roi_align_op(), &roi_align_backward_op()}; }

}  // namespace galley
