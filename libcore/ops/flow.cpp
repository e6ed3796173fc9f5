#include "libcore/ops/flow.h"

#include <cmath>

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr size_t kLevels = 2;  // the first input with a level

void check_maps(const TensorType& x, std::string_view name) {
  check_floating(x, name);
  GALLEY_CHECK(x.shape.rank() == 4, name, " must be [N,C,H,W], not ", x);
}

void check_flow(const TensorType& flow) {
  check_maps(flow, "flow");
  GALLEY_CHECK(flow.shape[1] == 2, "flow must be [N,2,H,W], not ", flow);
}

TensorType plain(TensorType type, const Shape& shape) {
  type.format = {};
  type.names = {};
  type.shape = shape;
  return type;
}

std::vector<TensorType> infer_lookup(const OpContext& c) {
  const TensorType &flow = c.in(0), &first = c.in(1);
  check_flow(flow);
  check_maps(first, "first");
  const Shape& s = first.shape;
  GALLEY_CHECK(flow.shape[0] == s[0] && flow.shape[2] == s[2] && flow.shape[3] == s[3], "flow must be [", s[0], ",2,", s[2], ",", s[3],
               "], not ", flow);
  GALLEY_CHECK(c.inputs.size() > kLevels, "the look-up needs at least one level");
  for (size_t i = kLevels; i < c.inputs.size(); ++i) {
    const TensorType& level = c.in(static_cast<int>(i));
    GALLEY_CHECK(level.dtype == first.dtype && level.shape.rank() == 4 && level.shape[0] == s[0] && level.shape[1] == s[1],
                 "all levels must be ", first.dtype, " [", s[0], ",", s[1], ",H,W], not ", level);
  }
  const auto levels = static_cast<int64_t>(c.inputs.size() - kLevels);
  return {plain(first, {s[0], levels * c.attrs<CorrelationLookupAttrs>().per_level(), s[2], s[3]})};
}

void check_lookup_grad(const TensorType& grad, const TensorType& flow, int64_t radius) {
  check_maps(grad, "grad");
  check_flow(flow);
  const int64_t per_level = (2 * radius + 1) * (2 * radius + 1);
  GALLEY_CHECK(
      grad.shape[1] % per_level == 0 && grad.shape[0] == flow.shape[0] && grad.shape[2] == flow.shape[2] && grad.shape[3] == flow.shape[3],
      "grad must be [", flow.shape[0], ",L*", per_level, ",", flow.shape[2], ",", flow.shape[3], "], not ", grad);
}

std::vector<TensorType> infer_backward_first(const OpContext& c) {
  const auto& attrs = c.attrs<CorrelationLookupAttrs>();
  check_lookup_grad(c.in(0), c.in(1), attrs.radius);
  GALLEY_CHECK(std::ssize(c.inputs) - 2 == c.in(0).shape[1] / attrs.per_level(), "grad has ", c.in(0).shape[1] / attrs.per_level(),
               " levels, but ", c.inputs.size() - 2, " are given");
  const Shape& s = c.in(0).shape;
  return {plain(c.in(0), {s[0], c.in(2).shape[1], s[2], s[3]})};
}

std::vector<TensorType> infer_backward_level(const OpContext& c) {
  const auto& attrs = c.attrs<CorrelationLookupBackwardAttrs>();
  check_lookup_grad(c.in(0), c.in(1), attrs.radius);
  check_maps(c.in(2), "first");
  GALLEY_CHECK(attrs.input_size.size() == 2, "input_size needs two values (rows, columns), but has ", attrs.input_size.size());
  return {plain(c.in(2), {c.in(2).shape[0], c.in(2).shape[1], attrs.input_size[0], attrs.input_size[1]})};
}

void lookup_gradient(GradientBuilder& g) {
  const auto& forward = g.attrs<CorrelationLookupAttrs>();
  std::vector<Value> levels;
  for (size_t i = kLevels; i < g.node().inputs.size(); ++i) levels.push_back(g.in(i));
  if (g.wants(1)) g.set(1, correlation_lookup_backward_first(g.grad(), g.in(0), levels, forward));
  for (size_t i = 0; i < levels.size(); ++i) {
    if (!g.wants(kLevels + i)) continue;
    CorrelationLookupBackwardAttrs attrs;
    attrs.radius = forward.radius;
    attrs.level = static_cast<int64_t>(i);
    attrs.input_size = {levels[i].shape()[2], levels[i].shape()[3]};
    g.set(kLevels + i, correlation_lookup_backward_level(g.grad(), g.in(0), g.in(1), attrs));
  }
}

/// A product of all channels for each pixel of a window, and its share of four values.
Cost lookup_cost(const OpContext& c, int64_t positions, int64_t channels, int64_t radius, int64_t levels) {
  const auto window = static_cast<double>((2 * radius + 2) * (2 * radius + 2) * levels);
  return operand_cost(c, static_cast<double>(positions) * window * static_cast<double>(2 * channels + 8));
}
int64_t positions_of(const TensorType& x) { return x.shape[0] * x.shape[2] * x.shape[3]; }

std::vector<TensorType> infer_upsample(const OpContext& c) {
  const int64_t factor = c.attrs<ConvexUpsampleAttrs>().factor;
  const TensorType &flow = c.in(0), &mask = c.in(1);
  check_maps(flow, "flow");
  check_maps(mask, "mask");
  const Shape& s = flow.shape;
  GALLEY_CHECK((mask.shape == Shape{s[0], 9 * factor * factor, s[2], s[3]}), "mask must be [", s[0], ",", 9 * factor * factor, ",", s[2],
               ",", s[3], "], not ", mask);
  return {plain(flow, {s[0], s[1], s[2] * factor, s[3] * factor})};
}

std::vector<TensorType> infer_upsample_backward(const OpContext& c) {
  const int64_t factor = c.attrs<ConvexUpsampleAttrs>().factor;
  check_maps(c.in(0), "grad");
  const Shape& s = c.in(1).shape;
  GALLEY_CHECK((c.in(0).shape == Shape{s[0], s[1], s[2] * factor, s[3] * factor}), "grad must be [", s[0], ",", s[1], ",", s[2] * factor,
               ",", s[3] * factor, "], not ", c.in(0));
  return {c.in(1), c.in(2)};
}

void upsample_gradient(GradientBuilder& g) {
  if (!g.wants(0) && !g.wants(1)) return;
  const ConvexUpsampleGradients gradients = convex_upsample_backward(g.grad(), g.in(0), g.in(1), g.attrs<ConvexUpsampleAttrs>());
  if (g.wants(0)) g.set(0, gradients.flow);
  if (g.wants(1)) g.set(1, gradients.mask);
}

constexpr OptionInfo kRadius{.name = "radius", .doc = "pixels on each side of the point that are compared", .min = 0, .max = 64};

}  // namespace

void CorrelationLookupAttrs::options(OptionVisitor& v) { v.option(kRadius, radius); }
void CorrelationLookupBackwardAttrs::options(OptionVisitor& v) {
  v.option(kRadius, radius);
  v.option({.name = "level", .doc = "the level whose gradient it is", .min = 0}, level);
  v.option({.name = "input_size", .doc = "rows and columns of the level", .min = 1, .required = true}, input_size);
}
void ConvexUpsampleAttrs::options(OptionVisitor& v) {
  v.option({.name = "factor", .doc = "rows and columns of the output for each of the input", .min = 1, .max = 64}, factor);
}

LookupAxis lookup_axis(double center, int64_t radius, int64_t size) {
  const double low = std::floor(center), first = low - static_cast<double>(radius);
  const bool inside = first < static_cast<double>(size) && first + 2 * static_cast<double>(radius) + 1 >= 0;
  if (!inside) return {.fraction = std::isnan(center) ? center : 0};
  return {.first = static_cast<int64_t>(first), .fraction = center - low, .inside = true};
}

const OpDef& detach_op() {
  static const OpDef def{.name = "detach",
                         .doc = "x, as a constant for differentiation",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .infer = [](const OpContext& c) { return std::vector<TensorType>{c.in(0)}; },
                         .no_gradient = "it stops the gradient",
                         .may_reuse = {{0, 0}},
                         .stops_gradient = true};
  return def;
}
const OpDef& correlation_lookup_op() {
  static const OpDef def{.name = "correlation_lookup",
                         .doc = "dot products of features around the points to which pixels move (Teed, Deng 2020)",
                         .inputs = {"flow", "first", "levels*"},
                         .outputs = {"y"},
                         .make_attrs = make_options<CorrelationLookupAttrs>,
                         .infer = infer_lookup,
                         .gradient = lookup_gradient,
                         .cost =
                             [](const OpContext& c) {
                               const auto levels = static_cast<int64_t>(c.inputs.size() - kLevels);
                               return lookup_cost(c, positions_of(c.out(0)), c.in(1).shape[1], c.attrs<CorrelationLookupAttrs>().radius,
                                                  levels);
                             },
                         .work = WorkClass::kProduct,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"correlation_lookup:1x2x46x62+1x128x46x62+1x128x46x62+1x128x23x31+1x128x11x15+1x128x5x7:radius=3"}};
  return def;
}
const OpDef& correlation_lookup_backward_first_op() {
  static const OpDef def{
      .name = "correlation_lookup_backward_first",
      .doc = "the gradient of the first image's features",
      .inputs = {"grad", "flow", "levels*"},
      .outputs = {"dfirst"},
      .make_attrs = make_options<CorrelationLookupAttrs>,
      .infer = infer_backward_first,
      .no_gradient = kNoSecondDerivative,
      .cost =
          [](const OpContext& c) {
            const auto levels = static_cast<int64_t>(c.inputs.size() - kLevels);
            return lookup_cost(c, positions_of(c.in(0)), c.in(2).shape[1], c.attrs<CorrelationLookupAttrs>().radius, levels);
          },
      .work = WorkClass::kProduct,
      .layout = {.prefers_channels_last = true},
      .precision = PrecisionRule::kKeepF32,
      .cases = {"correlation_lookup_backward_first:1x196x46x62+1x2x46x62+1x128x46x62+1x128x23x31+1x128x11x15+1x128x5x7:radius=3"}};
  return def;
}
const OpDef& correlation_lookup_backward_level_op() {
  static const OpDef def{.name = "correlation_lookup_backward_level",
                         .doc = "the gradient of a level of the second image's features",
                         .inputs = {"grad", "flow", "first"},
                         .outputs = {"dlevel"},
                         .make_attrs = make_options<CorrelationLookupBackwardAttrs>,
                         .infer = infer_backward_level,
                         .no_gradient = kNoSecondDerivative,
                         .cost =
                             [](const OpContext& c) {
                               return lookup_cost(c, positions_of(c.in(0)), c.in(2).shape[1],
                                                  c.attrs<CorrelationLookupBackwardAttrs>().radius, 1);
                             },
                         .work = WorkClass::kProduct,
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"correlation_lookup_backward_level:1x196x46x62+1x2x46x62+1x128x46x62:radius=3,input_size=[46,62]"}};
  return def;
}
const OpDef& convex_upsample_op() {
  static const OpDef def{.name = "convex_upsample",
                         .doc = "convex combinations of the 3x3 coarse pixels around each fine one (Teed, Deng 2020)",
                         .inputs = {"flow", "mask"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ConvexUpsampleAttrs>,
                         .infer = infer_upsample,
                         .gradient = upsample_gradient,
                         .cost = [](const OpContext& c) { return operand_cost(c, 8 * static_cast<double>(c.in(1).elements())); },
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"convex_upsample:1x2x46x62+1x576x46x62"}};
  return def;
}
const OpDef& convex_upsample_backward_op() {
  static const OpDef def{.name = "convex_upsample_backward",
                         .doc = "the gradients of convex_upsample",
                         .inputs = {"grad", "flow", "mask"},
                         .outputs = {"dflow", "dmask"},
                         .make_attrs = make_options<ConvexUpsampleAttrs>,
                         .infer = infer_upsample_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = [](const OpContext& c) { return operand_cost(c, 20 * static_cast<double>(c.in(2).elements())); },
                         .layout = {.prefers_channels_last = true},
                         .precision = PrecisionRule::kKeepF32,
                         .cases = {"convex_upsample_backward:1x2x368x496+1x2x46x62+1x576x46x62"}};
  return def;
}

Value detach(Value x) { return emit("detach", {x}); }
Value correlation_lookup(Value flow, Value first, const std::vector<Value>& levels, const CorrelationLookupAttrs& attrs) {
  std::vector<Value> inputs{flow, first};
  inputs.insert(inputs.end(), levels.begin(), levels.end());
  return emit_all("correlation_lookup", std::make_unique<CorrelationLookupAttrs>(attrs), inputs).front();
}
Value correlation_lookup_backward_first(Value grad, Value flow, const std::vector<Value>& levels, const CorrelationLookupAttrs& attrs) {
  std::vector<Value> inputs{grad, flow};
  inputs.insert(inputs.end(), levels.begin(), levels.end());
  return emit_all("correlation_lookup_backward_first", std::make_unique<CorrelationLookupAttrs>(attrs), inputs).front();
}
Value correlation_lookup_backward_level(Value grad, Value flow, Value first, const CorrelationLookupBackwardAttrs& attrs) {
  return emit("correlation_lookup_backward_level", {grad, flow, first}, attrs);
}
Value convex_upsample(Value flow, Value mask, const ConvexUpsampleAttrs& attrs) { return emit("convex_upsample", {flow, mask}, attrs); }
ConvexUpsampleGradients convex_upsample_backward(Value grad, Value flow, Value mask, const ConvexUpsampleAttrs& attrs) {
  const std::vector<Value> inputs{grad, flow, mask};
  const std::vector<Value> results = emit_all("convex_upsample_backward", std::make_unique<ConvexUpsampleAttrs>(attrs), inputs);
  return {results[0], results[1]};
}

OpTable flow_ops() {
  return {&detach_op(),
          &correlation_lookup_op(),
          &correlation_lookup_backward_first_op(),
          &correlation_lookup_backward_level_op(),
          &convex_upsample_op(),
          &convex_upsample_backward_op()};
}

}  // namespace galley
