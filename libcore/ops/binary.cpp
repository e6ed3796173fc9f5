#include "libcore/ops/binary.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

Shape shape_of(const ShapeAttrs& attrs) { return Shape(std::span<const int64_t>(attrs.shape)); }

ShapeAttrs attrs_of(const Shape& shape) {
  ShapeAttrs attrs;
  attrs.shape.assign(shape.begin(), shape.end());
  return attrs;
}

/// The names of x's dimensions for another rank, aligned at the last dimension.
std::vector<std::string> aligned_names(const TensorType& x, int rank) {
  std::vector<std::string> names;
  for (int axis = 0; axis < rank; ++axis) names.emplace_back(dim_name(x, axis - (rank - x.shape.rank())));
  return tidy_names(std::move(names));
}

/// Whether `small` broadcasts to `large`.
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

}  // namespace

void ShapeAttrs::options(OptionVisitor& v) { v.option({.name = "shape", .doc = "sizes of the result", .min = 0}, shape); }

const OpDef& sum_to_op() {
  static const OpDef def{.name = "sum_to",
                         .doc = "sums over broadcast dimensions down to a shape: the inverse of broadcast_to",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ShapeAttrs>,
                         .infer = infer_sum_to,
                         .gradient = [](GradientBuilder& g) { g.set(0, broadcast_to(g.grad(), g.in(0).shape())); },
                         .cost = input_cost<1>,
                         .definition = definition::sum_to,
                         .cases = {"sum_to:16x64x56x56:shape=[1,64,1,1]"}};
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
                         .quantize = QuantizeRule::kPassThrough,
                         .cases = {"broadcast_to:16x64x1x1:shape=[16,64,56,56]"}};
  return def;
}

Value add(Value a, Value b) { return emit("add", {a, b}); }
Value sub(Value a, Value b) { return emit("sub", {a, b}); }
Value mul(Value a, Value b) { return emit("mul", {a, b}); }
Value div(Value a, Value b) { return emit("div", {a, b}); }
Value maximum(Value a, Value b) { return emit("maximum", {a, b}); }
Value minimum(Value a, Value b) { return emit("minimum", {a, b}); }
Value power(Value a, Value b) { return emit("power", {a, b}); }
Value swiglu(Value a, Value b) { return emit("swiglu", {a, b}); }
Value equal(Value a, Value b) { return emit("equal", {a, b}); }
Value less(Value a, Value b) { return emit("less", {a, b}); }
Value greater(Value a, Value b) { return emit("greater", {a, b}); }
Value where(Value condition, Value a, Value b) { return emit("where", {condition, a, b}); }
Value sum_to(Value x, const ShapeAttrs& attrs) { return emit("sum_to", {x}, attrs); }
Value sum_to(Value x, const Shape& shape) { return x.shape() == shape ? x : sum_to(x, attrs_of(shape)); }
Value broadcast_to(Value x, const ShapeAttrs& attrs) { return emit("broadcast_to", {x}, attrs); }
Value broadcast_to(Value x, const Shape& shape) { return x.shape() == shape ? x : broadcast_to(x, attrs_of(shape)); }

OpTable broadcast_ops() { return {&sum_to_op(), &broadcast_to_op()}; }

}  // namespace galley
