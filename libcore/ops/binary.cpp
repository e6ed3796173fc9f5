#include "libcore/ops/binary.h"

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

std::vector<TensorType> broadcast(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype == c.in(1).dtype, "both sides must have one dtype: a ", c.in(0), ", b ", c.in(1), "; cast one");
  return {broadcast_types(c.in(0), c.in(1))};
}

std::vector<TensorType> broadcast_numbers(const OpContext& c) {
  check_not_bool(c.in(0), "a");
  return broadcast(c);
}

std::vector<TensorType> broadcast_floating(const OpContext& c) {
  check_floating(c.in(0), "a");
  return broadcast(c);
}

std::vector<TensorType> compare(const OpContext& c) {
  std::vector<TensorType> types = broadcast(c);
  types[0].dtype = DType::kBool;
  return types;
}

using Gradient = void (*)(GradientBuilder&);

OpDef binary(std::string_view name, std::string_view doc, Gradient gradient) {
  return {.name = name,
          .doc = doc,
          .inputs = {"a", "b"},
          .outputs = {"y"},
          .infer = broadcast_numbers,
          .gradient = gradient,
          .cost = elementwise_cost<1>,
          .may_reuse = {{0, 0}, {0, 1}}};
}

OpDef comparison(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"a", "b"},
          .outputs = {"y"},
          .infer = compare,
          .no_gradient = "piecewise constant",
          .cost = elementwise_cost<1>};
}

/// Sets the gradient of input i, summed over the dimensions that it was broadcast along.
void set_summed(GradientBuilder& g, size_t i, Value gradient) { g.set(i, sum_to(gradient, g.in(i).shape())); }

Value scalar_like(Value x, double value) {
  TensorType scalar;
  scalar.dtype = x.dtype();
  return full(x.graph(), scalar, value);
}

/// Gradient of maximum and minimum: `wins` is greater or less.
void extremum_gradient(GradientBuilder& g, Value (*wins)(Value, Value)) {
  for (size_t i : {0u, 1u}) {
    if (!g.wants(i)) continue;
    const Value tie = where(equal(g.in(0), g.in(1)), affine(g.grad(), 0.5), scalar_like(g.grad(), 0));
    set_summed(g, i, where(wins(g.in(i), g.in(1 - i)), g.grad(), tie));
  }
}

Shape shape_of(const ShapeAttrs& attrs) { return Shape(std::span<const int64_t>(attrs.shape)); }

ShapeAttrs attrs_of(const Shape& shape) {
  ShapeAttrs attrs;
  attrs.shape.assign(shape.begin(), shape.end());
  return attrs;
}

/// Names of x's dimensions under another rank, right-aligned.
std::vector<std::string> aligned_names(const TensorType& x, int rank) {
  std::vector<std::string> names;
  for (int axis = 0; axis < rank; ++axis) names.emplace_back(dim_name(x, axis - (rank - x.shape.rank())));
  return tidy_names(std::move(names));
}

/// Does `small` broadcast to `large`?
bool broadcasts_to(const Shape& small, const Shape& large) {
  if (small.rank() > large.rank()) return false;
  for (int back = 1; back <= small.rank(); ++back) {
    if (small[-back] != large[-back] && small[-back] != 1) return false;
  }
  return true;
}

std::vector<TensorType> infer_sum_to(const OpContext& c) {
  TensorType y;
  y.dtype = c.in(0).dtype;
  y.shape = shape_of(c.attrs<ShapeAttrs>());
  check_not_bool(c.in(0), "x");
  GALLEY_CHECK(broadcasts_to(y.shape, c.in(0).shape), "shape ", y.shape, " does not broadcast to the input's shape ", c.in(0).shape);
  y.names = aligned_names(c.in(0), y.shape.rank());
  if (y.shape == c.in(0).shape) y.format = c.in(0).format;
  return {y};
}

std::vector<TensorType> infer_sum_products(const OpContext& c) {
  check_like(c.in(1), "b", c.in(0), "a");
  return infer_sum_to(c);
}

}  // namespace

void ShapeAttrs::options(OptionVisitor& v) { v.option({.name = "shape", .doc = "sizes of the result", .min = 0}, shape); }

const OpDef& add_op() {
  static const OpDef def = [] {
    OpDef op = binary("add", "a + b", [](GradientBuilder& g) {
      for (size_t i : {0u, 1u}) {
        if (g.wants(i)) set_summed(g, i, g.grad());
      }
    });
    op.quantize = QuantizeRule::kCompute;
    return op;
  }();
  return def;
}
const OpDef& sub_op() {
  static const OpDef def = binary("sub", "a - b", [](GradientBuilder& g) {
    if (g.wants(0)) set_summed(g, 0, g.grad());
    if (g.wants(1)) set_summed(g, 1, neg(g.grad()));
  });
  return def;
}
const OpDef& mul_op() {
  static const OpDef def = [] {
    OpDef op = binary("mul", "a * b", [](GradientBuilder& g) {
      for (size_t i : {0u, 1u}) {
        if (g.wants(i)) set_summed(g, i, mul(g.grad(), g.in(1 - i)));
      }
    });
    op.quantize = QuantizeRule::kCompute;
    return op;
  }();
  return def;
}
const OpDef& div_op() {
  static const OpDef def = [] {
    OpDef op = binary("div", "a / b", [](GradientBuilder& g) {
      if (g.wants(0)) set_summed(g, 0, div(g.grad(), g.in(1)));
      if (g.wants(1)) set_summed(g, 1, neg(div(mul(g.grad(), g.out()), g.in(1))));
    });
    op.infer = broadcast_floating;
    return op;
  }();
  return def;
}
const OpDef& maximum_op() {
  static const OpDef def = binary("maximum", "the larger of a and b", [](GradientBuilder& g) { extremum_gradient(g, greater); });
  return def;
}
const OpDef& minimum_op() {
  static const OpDef def = binary("minimum", "the smaller of a and b", [](GradientBuilder& g) { extremum_gradient(g, less); });
  return def;
}
const OpDef& power_op() {
  static const OpDef def = [] {
    OpDef op = binary("power", "a to the b", [](GradientBuilder& g) {
      const Value a = g.in(0), b = g.in(1);
      const Value zero = scalar_like(a, 0);
      // The selections keep 0 * inf out: exponent 0 has slope 0, and 0^b does not change with b > 0.
      if (g.wants(0)) set_summed(g, 0, where(equal(b, zero), zero, mul(g.grad(), mul(b, power(a, affine(b, 1, -1))))));
      if (g.wants(1)) set_summed(g, 1, where(equal(a, zero), zero, mul(g.grad(), mul(g.out(), log(a)))));
    });
    op.infer = broadcast_floating;
    op.precision = PrecisionRule::kKeepF32;
    return op;
  }();
  return def;
}
const OpDef& equal_op() {
  static const OpDef def = comparison("equal", "is a equal to b (bool)");
  return def;
}
const OpDef& less_op() {
  static const OpDef def = comparison("less", "is a less than b (bool)");
  return def;
}
const OpDef& greater_op() {
  static const OpDef def = comparison("greater", "is a greater than b (bool)");
  return def;
}
const OpDef& where_op() {
  static const OpDef def{.name = "where",
                         .doc = "a where the condition holds, else b; all three broadcast",
                         .inputs = {"condition", "a", "b"},
                         .outputs = {"y"},
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           GALLEY_CHECK(c.in(0).dtype == DType::kBool, "the condition must be bool, is ", c.in(0));
                           GALLEY_CHECK(c.in(1).dtype == c.in(2).dtype, "both choices must have one dtype: a ", c.in(1), ", b ", c.in(2),
                                        "; cast one");
                           return {broadcast_types(broadcast_types(c.in(1), c.in(2)), c.in(0))};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               const Value zero = scalar_like(g.grad(), 0);
                               if (g.wants(1)) set_summed(g, 1, where(g.in(0), g.grad(), zero));
                               if (g.wants(2)) set_summed(g, 2, where(g.in(0), zero, g.grad()));
                             },
                         .cost = elementwise_cost<1>,
                         .may_reuse = {{0, 1}, {0, 2}}};
  return def;
}
const OpDef& sum_to_op() {
  static const OpDef def{.name = "sum_to",
                         .doc = "sums over broadcast dimensions down to a shape: the inverse of broadcast_to",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ShapeAttrs>,
                         .infer = infer_sum_to,
                         .gradient = [](GradientBuilder& g) { g.set(0, broadcast_to(g.grad(), g.in(0).shape())); },
                         .cost = input_cost<1>};
  return def;
}
const OpDef& sum_products_op() {
  static const OpDef def{.name = "sum_products",
                         .doc = "sum_to of a b",
                         .inputs = {"a", "b"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ShapeAttrs>,
                         .infer = infer_sum_products,
                         .no_gradient = "put in after differentiation",
                         .cost = input_cost<2>};
  return def;
}
const OpDef& broadcast_to_op() {
  static const OpDef def{.name = "broadcast_to",
                         .doc = "repeats dimensions of size 1, and adds leading ones, up to a shape (NumPy's broadcasting)",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ShapeAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           TensorType y;
                           y.dtype = c.in(0).dtype;
                           y.shape = shape_of(c.attrs<ShapeAttrs>());
                           GALLEY_CHECK(broadcasts_to(c.in(0).shape, y.shape), "the input's shape ", c.in(0).shape,
                                        " does not broadcast to ", y.shape);
                           y.names = aligned_names(c.in(0), y.shape.rank());
                           if (y.shape == c.in(0).shape) y.format = c.in(0).format;
                           return {y};
                         },
                         .gradient = [](GradientBuilder& g) { g.set(0, sum_to(g.grad(), g.in(0).shape())); },
                         .quantize = QuantizeRule::kPassThrough};
  return def;
}

Value add(Value a, Value b) { return emit("add", {a, b}); }
Value sub(Value a, Value b) { return emit("sub", {a, b}); }
Value mul(Value a, Value b) { return emit("mul", {a, b}); }
Value div(Value a, Value b) { return emit("div", {a, b}); }
Value maximum(Value a, Value b) { return emit("maximum", {a, b}); }
Value minimum(Value a, Value b) { return emit("minimum", {a, b}); }
Value power(Value a, Value b) { return emit("power", {a, b}); }
Value equal(Value a, Value b) { return emit("equal", {a, b}); }
Value less(Value a, Value b) { return emit("less", {a, b}); }
Value greater(Value a, Value b) { return emit("greater", {a, b}); }
Value where(Value condition, Value a, Value b) { return emit("where", {condition, a, b}); }
Value sum_to(Value x, const ShapeAttrs& attrs) { return emit("sum_to", {x}, attrs); }
Value sum_to(Value x, const Shape& shape) { return x.shape() == shape ? x : sum_to(x, attrs_of(shape)); }
Value sum_products(Value a, Value b, const ShapeAttrs& attrs) { return emit("sum_products", {a, b}, attrs); }
Value broadcast_to(Value x, const ShapeAttrs& attrs) { return emit("broadcast_to", {x}, attrs); }
Value broadcast_to(Value x, const Shape& shape) { return x.shape() == shape ? x : broadcast_to(x, attrs_of(shape)); }

OpTable binary_ops() {
  return {&add_op(),   &sub_op(),  &mul_op(),     &div_op(),   &maximum_op(), &minimum_op(),     &power_op(),
          &equal_op(), &less_op(), &greater_op(), &where_op(), &sum_to_op(),  &sum_products_op(), &broadcast_to_op()};
}

}  // namespace galley
