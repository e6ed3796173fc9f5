#include "libcore/ops/reduce.h"

#include <algorithm>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

TensorType reduced(const TensorType& x, const std::vector<int>& axes, bool keepdim) {
  TensorType y;
  y.dtype = x.dtype;
  std::vector<std::string> names;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const bool gone = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (gone && !keepdim) continue;
    y.shape.push_back(gone ? 1 : x.shape[axis]);
    names.emplace_back(dim_name(x, axis));
  }
  y.names = tidy_names(std::move(names));
  return y;
}

std::vector<TensorType> infer_reduce(const OpContext& c) {
  const auto& attrs = c.attrs<ReduceAttrs>();
  check_not_bool(c.in(0), "x");
  return {reduced(c.in(0), axes_of(attrs.axes, c.in(0)), attrs.keepdim)};
}

std::vector<TensorType> infer_mean(const OpContext& c) {
  check_floating(c.in(0), "x");
  return infer_reduce(c);
}

std::vector<TensorType> infer_extremum(const OpContext& c) {
  for (int axis : axes_of(c.attrs<ReduceAttrs>().axes, c.in(0))) {
    GALLEY_CHECK(c.in(0).shape[axis] > 0, "the extreme value of an empty axis is undefined: axis ", axis, " of ", c.in(0).shape,
                 " is empty");
  }
  return infer_reduce(c);
}

/// Restores the dropped dimensions of a reduced value, with size 1.
Value with_kept_dims(Value y, Value x, const ReduceAttrs& attrs) {
  return reshape(y, reduced(x.type(), axes_of(attrs.axes, x.type()), true).shape);
}

int64_t reduced_count(Value x, const ReduceAttrs& attrs) {
  int64_t count = 1;
  for (int axis : axes_of(attrs.axes, x.type())) count *= x.shape()[axis];
  return count;
}

void extremum_gradient(GradientBuilder& g) {
  if (!g.wants(0)) return;
  ReduceAttrs kept = g.attrs<ReduceAttrs>();
  const Value mask = cast(equal(g.in(0), with_kept_dims(g.out(), g.in(0), kept)), g.in(0).dtype());
  const Value grad = with_kept_dims(g.grad(), g.in(0), kept);
  kept.keepdim = true;
  g.set(0, mul(mask, div(grad, sum(mask, kept))));
}

OpDef reduction(std::string_view name, std::string_view doc, std::vector<TensorType> (*infer)(const OpContext&),
                void (*gradient)(GradientBuilder&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = make_options<ReduceAttrs>,
          .infer = infer,
          .gradient = gradient,
          .cost = input_cost<1>};
}

}  // namespace

void ReduceAttrs::options(OptionVisitor& v) {
  v.option({.name = "axes", .doc = "axes to reduce; empty: all axes"}, axes);
  v.option({.name = "keepdim", .doc = "keep reduced dimensions with size 1"}, keepdim);
}
void ArgmaxAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "axis to search"}, axis);
  v.option({.name = "keepdim", .doc = "keep the dimension with size 1"}, keepdim);
}
void TopkAttrs::options(OptionVisitor& v) {
  v.option({.name = "k", .doc = "number of values", .min = 1}, k);
  v.option({.name = "axis", .doc = "axis to search"}, axis);
}

namespace {
bool means_pixels(const OpContext& c) {
  if (c.in(0).shape.rank() != 4) return false;
  std::set<int64_t> axes;
  for (int64_t axis : c.attrs<ReduceAttrs>().axes) axes.insert(axis < 0 ? axis + 4 : axis);
  return axes == std::set<int64_t>{2, 3};
}
void mean_on_integers(IntegerBuilder& b) {
  QuantizedAdaptiveAvgPool2dAttrs attrs;
  set_input_and_result(b, attrs);
  const Value mean = quantized_adaptive_avg_pool2d(b.in(0), attrs);
  b.set(b.attrs<ReduceAttrs>().keepdim ? mean : reshape(mean, b.out_type().shape));
}
}  // namespace

const OpDef& sum_op() {
  static const OpDef def = [] {
    OpDef op = reduction("sum", "sum over axes", infer_reduce, [](GradientBuilder& g) {
      if (!g.wants(0)) return;
      g.set(0, broadcast_to(with_kept_dims(g.grad(), g.in(0), g.attrs<ReduceAttrs>()), g.in(0).shape()));
    });
    op.cases = {"sum:16x64x56x56:axes=[0,2,3]"};
    return op;
  }();
  return def;
}
const OpDef& mean_op() {
  static const OpDef def = [] {
    OpDef op = reduction("mean", "mean over axes", infer_mean, [](GradientBuilder& g) {
      if (!g.wants(0)) return;
      const auto& attrs = g.attrs<ReduceAttrs>();
      const double count = static_cast<double>(std::max<int64_t>(1, reduced_count(g.in(0), attrs)));
      g.set(0, broadcast_to(affine(with_kept_dims(g.grad(), g.in(0), attrs), 1 / count), g.in(0).shape()));
    });
    op.quantize = QuantizeRule::kCompute;
    op.quantizable = means_pixels;
    op.integer_form = mean_on_integers;
    op.cases = {"mean:16x64x56x56:axes=[2,3]"};
    op.definition = definition::mean;
    return op;
  }();
  return def;
}
const OpDef& amax_op() {
  static const OpDef def = [] {
    OpDef op = reduction("amax", "largest value over axes; equal ones share the gradient evenly", infer_extremum, extremum_gradient);
    op.quantize = QuantizeRule::kPassThrough;
    return op;
  }();
  return def;
}
const OpDef& amin_op() {
  static const OpDef def = [] {
    OpDef op = reduction("amin", "smallest value over axes; equal ones share the gradient evenly", infer_extremum, extremum_gradient);
    op.quantize = QuantizeRule::kPassThrough;
    return op;
  }();
  return def;
}
const OpDef& argmax_op() {
  static const OpDef def{.name = "argmax",
                         .doc = "index (i64) of the largest value along an axis, the first one if several are equal; NaN counts as largest",
                         .inputs = {"x"},
                         .outputs = {Port::index("index")},
                         .make_attrs = make_options<ArgmaxAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           const auto& attrs = c.attrs<ArgmaxAttrs>();
                           check_not_bool(c.in(0), "x");
                           const int axis = axis_of(attrs.axis, c.in(0));
                           GALLEY_CHECK(c.in(0).shape[axis] > 0, "the largest value of an empty axis is undefined: axis ", axis, " of ",
                                        c.in(0).shape, " is empty");
                           TensorType y = reduced(c.in(0), {axis}, attrs.keepdim);
                           y.dtype = DType::kI64;
                           return {y};
                         },
                         .no_gradient = "an index is piecewise constant",
                         .cost = input_cost<1>,
                         .definition = definition::argmax,
                         .cases = {"argmax:64x1000:axis=1"}};
  return def;
}
const OpDef& topk_op() {
  static const OpDef def{
      .name = "topk",
      .doc = "the k largest values along an axis in descending order, and their indices; equal values are in the order of their indices",
      .inputs = {"x"},
      .outputs = {"values", Port::index("indices")},
      .make_attrs = make_options<TopkAttrs>,
      .infer = [](const OpContext& c) -> std::vector<TensorType> {
        const auto& attrs = c.attrs<TopkAttrs>();
        check_not_bool(c.in(0), "x");
        const int axis = axis_of(attrs.axis, c.in(0));
        GALLEY_CHECK(attrs.k >= 1 && attrs.k <= c.in(0).shape[axis], "k = ", attrs.k, " is not possible for axis ", axis, ", which has ",
                     c.in(0).shape[axis], " elements: input ", c.in(0).shape);
        TensorType values = c.in(0);
        values.format = {};
        values.shape[axis] = attrs.k;
        TensorType indices = values;
        indices.dtype = DType::kI64;
        return {values, indices};
      },
      .no_gradient = "it selects values for metrics and predictions, which are not trained",
      .cost = input_cost<1>,
      .cases = {"topk:64x1000:k=5,axis=1"}};
  return def;
}
const OpDef& sum_squares_op() {
  static const OpDef def{.name = "sum_squares",
                         .doc = "sum of squares over all elements of all inputs, as f32 []",
                         .inputs = {"x*"},
                         .outputs = {Port::scalar("y")},
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           GALLEY_CHECK(!c.inputs.empty(), "needs at least one input");
                           for (size_t i = 0; i < c.inputs.size(); ++i) check_floating(c.in(static_cast<int>(i)), cat("input ", i));
                           return {TensorType{}};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               for (size_t i = 0; i < g.node().inputs.size(); ++i) {
                                 if (g.wants(i)) g.set(i, mul(g.in(i), cast(affine(g.grad(), 2), g.in(i).dtype())));
                               }
                             },
                         .cost =
                             [](const OpContext& c) {
                               double elements = 0;
                               for (const TensorType* x : c.inputs) elements += static_cast<double>(x->elements());
                               return operand_cost(c, 2 * elements);
                             },
                         // The sum does not depend on the memory format (padding is zero), so inputs may have different formats.
                         .layout = {FormatRule::kExplicit},
                         .definition = definition::sum_squares};
  return def;
}

Value sum(Value x, const ReduceAttrs& attrs) { return emit("sum", {x}, attrs); }
Value sum(Value x, std::vector<int64_t> axes, bool keepdim) {
  ReduceAttrs attrs;
  attrs.axes = std::move(axes);
  attrs.keepdim = keepdim;
  return sum(x, attrs);
}
Value mean(Value x, const ReduceAttrs& attrs) { return emit("mean", {x}, attrs); }
Value mean(Value x, std::vector<int64_t> axes, bool keepdim) {
  ReduceAttrs attrs;
  attrs.axes = std::move(axes);
  attrs.keepdim = keepdim;
  return mean(x, attrs);
}
Value amax(Value x, const ReduceAttrs& attrs) { return emit("amax", {x}, attrs); }
Value amin(Value x, const ReduceAttrs& attrs) { return emit("amin", {x}, attrs); }
Value argmax(Value x, const ArgmaxAttrs& attrs) { return emit("argmax", {x}, attrs); }
TopK topk(Value x, const TopkAttrs& attrs) {
  const std::vector<Value> outputs = emit_all("topk", std::make_unique<TopkAttrs>(attrs), std::span<const Value>(&x, 1));
  return {outputs[0], outputs[1]};
}
Value sum_squares(std::span<const Value> x) { return emit_all("sum_squares", nullptr, x).front(); }

OpTable reduce_ops() { return {&sum_op(), &mean_op(), &amax_op(), &amin_op(), &argmax_op(), &topk_op(), &sum_squares_op()}; }

}  // namespace galley
