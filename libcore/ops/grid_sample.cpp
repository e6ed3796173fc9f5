#include "libcore/ops/grid_sample.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

void check_grid(const TensorType& grid, int64_t samples) {
  check_floating(grid, "grid");
  GALLEY_CHECK(grid.shape.rank() == 4 && grid.shape[0] == samples && grid.shape[3] == 2, "grid must be [", samples, ",h,w,2], not ", grid);
}

void check_image(const TensorType& x) {
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 4, "x must be [N,C,H,W], not ", x);
  GALLEY_CHECK(x.shape[2] >= 1 && x.shape[3] >= 1, "an empty image cannot be sampled: ", x);
}

TensorType with_size(const TensorType& x, int64_t rows, int64_t columns) {
  TensorType y = x;
  y.format = {};
  y.shape[2] = rows;
  y.shape[3] = columns;
  return y;
}

std::vector<TensorType> infer(const OpContext& c) {
  check_image(c.in(0));
  check_grid(c.in(1), c.in(0).shape[0]);
  return {with_size(c.in(0), c.in(1).shape[1], c.in(1).shape[2])};
}

void check_grad(const TensorType& grad, const TensorType& grid) {
  check_floating(grad, "grad");
  GALLEY_CHECK(grad.shape.rank() == 4 && grad.shape[2] == grid.shape[1] && grad.shape[3] == grid.shape[2], "grad must be [N,C,",
               grid.shape[1], ",", grid.shape[2], "], not ", grad);
}

std::vector<TensorType> infer_backward(const OpContext& c) {
  const auto& size = c.attrs<GridSampleBackwardAttrs>().input_size;
  check_grid(c.in(1), c.in(0).shape[0]);
  check_grad(c.in(0), c.in(1));
  GALLEY_CHECK(size.size() == 2 && size[0] >= 1 && size[1] >= 1, "input_size must be two sizes of at least 1 (rows, columns)");
  return {with_size(c.in(0), size[0], size[1])};
}

std::vector<TensorType> infer_backward_grid(const OpContext& c) {
  check_image(c.in(1));
  check_grid(c.in(2), c.in(1).shape[0]);
  check_grad(c.in(0), c.in(2));
  return {c.in(2)};
}

void gradient(GradientBuilder& g) {
  const auto& forward = g.attrs<GridSampleAttrs>();
  if (g.wants(0)) {
    GridSampleBackwardAttrs attrs;
    attrs.input_size = {g.in(0).shape()[2], g.in(0).shape()[3]};
    attrs.mode = forward.mode;
    attrs.padding_mode = forward.padding_mode;
    attrs.align_corners = forward.align_corners;
    g.set(0, grid_sample_backward(g.grad(), g.in(1), attrs));
  }
  if (g.wants(1)) g.set(1, grid_sample_backward_grid(g.grad(), g.in(0), g.in(1), forward));
}

template <class Attrs>
void common_options(OptionVisitor& v, Attrs& attrs) {
  v.choice({.name = "mode", .doc = "interpolation"}, attrs.mode, kGridSampleModeNames);
  v.choice({.name = "padding_mode", .doc = "pixels outside the image: zeros, the nearest pixel (border), or the mirrored image"},
           attrs.padding_mode, kGridPaddingNames);
  v.option({.name = "align_corners", .doc = "-1 and 1 are the centers of the corner pixels, not the borders of the image"},
           attrs.align_corners);
}

/// Mirrors a position into the range between low / 2 and high / 2; `sign` is that of the direction.
double reflected(double position, int64_t low, int64_t high, double& sign) {
  if (low == high) {
    sign = 0;
    return 0;
  }
  const double start = static_cast<double>(low) / 2, span = static_cast<double>(high - low) / 2;
  sign = position < start ? -1 : 1;
  const double away = std::abs(position - start), rest = std::fmod(away, span);
  if (std::fmod(std::floor(away / span), 2) == 0) return rest + start;
  sign = -sign;
  return span - rest + start;
}

}  // namespace

void GridSampleAttrs::options(OptionVisitor& v) { common_options(v, *this); }
void GridSampleBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "input_size", .doc = "rows and columns of the input of the forward operator", .min = 1, .required = true}, input_size);
  common_options(v, *this);
}
GridSampleAttrs GridSampleBackwardAttrs::forward() const {
  GridSampleAttrs attrs;
  attrs.mode = mode;
  attrs.padding_mode = padding_mode;
  attrs.align_corners = align_corners;
  return attrs;
}

GridPoint grid_point(double at, int64_t size, GridPadding padding, bool align_corners) {
  const auto pixels = static_cast<double>(size);
  GridPoint point;
  point.slope = (align_corners ? pixels - 1 : pixels) / 2;
  point.position = align_corners ? (at + 1) / 2 * (pixels - 1) : ((at + 1) * pixels - 1) / 2;
  if (padding == GridPadding::kZeros) return point;
  if (padding == GridPadding::kReflection) {
    double sign = 1;
    point.position = align_corners ? reflected(point.position, 0, 2 * (size - 1), sign) : reflected(point.position, -1, 2 * size - 1, sign);
    point.slope *= sign;
  }
  if (!(point.position > 0)) return {0, 0};  // NaN too
  if (point.position >= pixels - 1) return {pixels - 1, 0};
  return point;
}

std::array<GridTap, 2> grid_taps(double position, int64_t size, GridSampleMode mode) {
  const auto inside = [&](double pixel) { return pixel >= 0 && pixel <= static_cast<double>(size - 1); };
  const auto tap = [&](double pixel, double weight, double slope) {
    const bool exists = inside(pixel);
    return GridTap{exists ? static_cast<int64_t>(pixel) : 0, weight, slope, exists};
  };
  if (std::isnan(position)) return {GridTap{0, position, position, true}, GridTap{}};
  if (mode == GridSampleMode::kNearest) return {tap(std::nearbyint(position), 1, 0), GridTap{}};
  const double low = std::floor(position), fraction = position - low;
  return {tap(low, 1 - fraction, -1), tap(low + 1, fraction, 1)};
}

const OpDef& grid_sample_op() {
  static const OpDef def{.name = "grid_sample",
                         .doc = "samples images at given points, bilinear or nearest, as torch.nn.functional.grid_sample",
                         .inputs = {"x", "grid"},
                         .outputs = {"y"},
                         .make_attrs = make_options<GridSampleAttrs>,
                         .infer = infer,
                         .gradient = gradient,
                         .cost = elementwise_cost<8>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"grid_sample:4x64x64x64+4x64x64x2"}};
  return def;
}
const OpDef& grid_sample_backward_op() {
  static const OpDef def{.name = "grid_sample_backward",
                         .doc = "adds the gradient of each point to the pixels that it depends on",
                         .inputs = {"grad", "grid"},
                         .outputs = {"dx"},
                         .make_attrs = make_options<GridSampleBackwardAttrs>,
                         .infer = infer_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<8>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"grid_sample_backward:4x64x64x64+4x64x64x2:input_size=[64,64]"}};
  return def;
}
const OpDef& grid_sample_backward_grid_op() {
  static const OpDef def{.name = "grid_sample_backward_grid",
                         .doc = "the gradient of the points at which images were sampled",
                         .inputs = {"grad", "x", "grid"},
                         .outputs = {"dgrid"},
                         .make_attrs = make_options<GridSampleAttrs>,
                         .infer = infer_backward_grid,
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<16>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"grid_sample_backward_grid:4x64x64x64+4x64x64x64+4x64x64x2"}};
  return def;
}

Value grid_sample(Value x, Value grid, const GridSampleAttrs& attrs) { return emit("grid_sample", {x, grid}, attrs); }
Value grid_sample_backward(Value grad, Value grid, const GridSampleBackwardAttrs& attrs) {
  return emit("grid_sample_backward", {grad, grid}, attrs);
}
Value grid_sample_backward_grid(Value grad, Value x, Value grid, const GridSampleAttrs& attrs) {
  return emit("grid_sample_backward_grid", {grad, x, grid}, attrs);
}

OpTable grid_sample_ops() { return {&grid_sample_op(), &grid_sample_backward_op(), &grid_sample_backward_grid_op()}; }

}  // namespace galley
