#include "libcore/ops/roi_pool.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/index.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// x [N,C,H,W] and boxes [N,R,4]; returns [N,R,channels,output_size].
TensorType bins_type(const OpContext& c, const std::vector<int64_t>& output_size, double spatial_scale, int64_t bins_per_channel) {
  const TensorType &x = c.in(0), &boxes = c.in(1);
  check_floating(x, "x");
  check_floating(boxes, "boxes");
  GALLEY_CHECK(x.shape.rank() == 4, "x must be [N,C,H,W], not ", x);
  GALLEY_CHECK(boxes.shape.rank() == 3 && boxes.shape[0] == x.shape[0] && boxes.shape[2] == 4, "boxes must be [", x.shape[0], ",R,4], not ",
               boxes);
  GALLEY_CHECK(output_size.size() == 2, "output_size needs two values (rows, columns), but has ", output_size.size());
  GALLEY_CHECK(spatial_scale > 0, "spatial_scale is ", spatial_scale, "; it must be positive");
  GALLEY_CHECK(x.shape[1] % bins_per_channel == 0, "x has ", x.shape[1], " channels; output_size [", output_size[0], ",", output_size[1],
               "] needs a multiple of ", bins_per_channel);
  TensorType y = x;
  y.format = {};
  y.names = {};
  y.shape = {x.shape[0], boxes.shape[1], x.shape[1] / bins_per_channel, output_size[0], output_size[1]};
  return y;
}

std::vector<TensorType> infer_pool(const OpContext& c) {
  const auto& attrs = c.attrs<RoiPoolAttrs>();
  const TensorType y = bins_type(c, attrs.output_size, attrs.spatial_scale, 1);
  TensorType index = y;
  index.dtype = DType::kI64;
  return {y, index};
}

/// 0 in the dtype of a value.
Value zero_of(Value like) {
  TensorType type;
  type.dtype = like.dtype();
  return full(like.graph(), type, 0);
}

/// Each bin's gradient goes to the pixel of its maximum.
void pool_gradient(GradientBuilder& g) {
  if (!g.wants(0)) return;
  const Shape &x = g.in(0).shape(), &y = g.out().shape();
  const auto by_channel = [&](Value bins) {  // [N,R,C,h,w] -> [N,C,R h w]
    return reshape(permute(bins, {0, 2, 1, 3, 4}), Shape{y[0], y[2], y[1] * y[3] * y[4]});
  };
  const Value index = g.out(1), none = zero_of(index);
  const Value empty = less(index, none);
  const Value pixels = where(empty, none, index);
  const Value grad = where(empty, zero_of(g.grad()), g.grad());
  g.set(0, reshape(scatter_add(by_channel(grad), by_channel(pixels), 2, x[2] * x[3]), x));
}

std::vector<TensorType> infer_position_sensitive(const OpContext& c) {
  const auto& attrs = c.attrs<PsRoiAlignAttrs>();
  int64_t bins = 1;
  for (const int64_t size : attrs.output_size) bins *= size;
  return {bins_type(c, attrs.output_size, attrs.spatial_scale, bins)};
}

RoiAlignAttrs align_attrs(const PsRoiAlignAttrs& attrs) {
  RoiAlignAttrs align;
  align.output_size = attrs.output_size;
  align.spatial_scale = {attrs.spatial_scale};
  align.sampling_ratio = attrs.sampling_ratio;
  align.aligned = true;
  return align;
}

/// The position that bin p reads: [N,R,C,1,bins], where element p is p.
Value own_position(Graph& graph, const Shape& y) {
  const int64_t bins = y[3] * y[4];
  return iota(graph, DType::kI64, Shape{y[0], y[1], y[2], 1, bins}, 4);
}

/// All bins of all channels, of which each output bin takes its own: channel (c, p) at bin p.
void position_sensitive_definition(Expansion& e) {
  const Shape& y = e.output_type().shape;
  const int64_t bins = y[3] * y[4];
  const Value all = galley::roi_align(e.in(0), e.in(1), align_attrs(e.attrs<PsRoiAlignAttrs>()));
  e.set(0, reshape(gather(reshape(all, Shape{y[0], y[1], y[2], bins, bins}), own_position(e.graph(), y), 3), y));
}

void position_sensitive_gradient(GradientBuilder& g) {
  if (!g.wants(0)) return;
  const Shape &x = g.in(0).shape(), &y = g.out().shape();
  const int64_t bins = y[3] * y[4];
  const Value own = reshape(g.grad(), Shape{y[0], y[1], y[2], 1, bins});
  const Value all = scatter_add(own, own_position(g.grad().graph(), y), 3, bins);
  const RoiAlignAttrs forward = align_attrs(g.attrs<PsRoiAlignAttrs>());
  RoiAlignBackwardAttrs attrs;
  attrs.input_size = {x[2], x[3]};
  attrs.spatial_scale = forward.spatial_scale;
  attrs.sampling_ratio = forward.sampling_ratio;
  attrs.aligned = true;
  g.set(0, roi_align_backward(reshape(all, Shape{y[0], y[1], x[1], y[3], y[4]}), g.in(1), attrs));
}

}  // namespace

void RoiPoolAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of bins", .min = 1}, output_size);
  v.option({.name = "spatial_scale", .doc = "size of x relative to the image of the boxes"}, spatial_scale);
}
void PsRoiAlignAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of bins", .min = 1}, output_size);
  v.option({.name = "spatial_scale", .doc = "size of x relative to the image of the boxes"}, spatial_scale);
  v.option({.name = "sampling_ratio", .doc = "samples per bin and axis; 0: as many as the bin has pixels, rounded up", .min = 0},
           sampling_ratio);
}

template <class T>
RoiPixels roi_pixels(T low, T high, T spatial_scale, int64_t bin, int64_t bins, int64_t size) {
  const T first = std::round(low * spatial_scale), last = std::round(high * spatial_scale);
  const T width = std::max(last - first + 1, T{1}) / static_cast<T>(bins);
  const T begin = std::floor(static_cast<T>(bin) * width) + first, end = std::ceil(static_cast<T>(bin + 1) * width) + first;
  const auto pixel = [&](T at) { return static_cast<int64_t>(std::clamp(at, T{0}, static_cast<T>(size))); };
  if (!(begin < end)) return {};  // also NaN
  return {pixel(begin), pixel(end)};
}
template RoiPixels roi_pixels(float, float, float, int64_t, int64_t, int64_t);
template RoiPixels roi_pixels(double, double, double, int64_t, int64_t, int64_t);

const OpDef& roi_pool_op() {
  static const OpDef def{.name = "roi_pool",
                         .doc = "the largest pixel in the bins of regions (Girshick 2015)",
                         .inputs = {"x", "boxes"},
                         .outputs = {"y", Port::index("index")},
                         .make_attrs = make_options<RoiPoolAttrs>,
                         .infer = infer_pool,
                         .gradient = pool_gradient,
                         .cost = elementwise_cost<16>,
                         .layout = {FormatRule::kExplicit},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"roi_pool:1x256x50x68+1x1000x4:spatial_scale=0.0625"}};
  return def;
}
const OpDef& ps_roi_align_op() {
  static const OpDef def{.name = "ps_roi_align",
                         .doc = "means of bilinear samples in the bins of regions, each bin of a channel of its own (Dai et al. 2016)",
                         .inputs = {"x", "boxes"},
                         .outputs = {"y"},
                         .make_attrs = make_options<PsRoiAlignAttrs>,
                         .infer = infer_position_sensitive,
                         .gradient = position_sensitive_gradient,
                         .cost = elementwise_cost<128>,
                         .layout = {FormatRule::kExplicit},
                         .precision = PrecisionRule::kKeepF32,
                         .definition = position_sensitive_definition,
                         .cases = {"ps_roi_align:1x490x38x50+1x300x4:spatial_scale=0.0625,sampling_ratio=2"}};
  return def;
}

RoiPool roi_pool(Value x, Value boxes, const RoiPoolAttrs& attrs) {
  const std::vector<Value> outputs = emit_all("roi_pool", std::make_unique<RoiPoolAttrs>(attrs), std::vector<Value>{x, boxes});
  return {outputs[0], outputs[1]};
}
Value ps_roi_align(Value x, Value boxes, const PsRoiAlignAttrs& attrs) { return emit("ps_roi_align", {x, boxes}, attrs); }

OpTable roi_pool_ops() { return {&roi_pool_op(), &ps_roi_align_op()}; }

}  // namespace galley
