#include "libcore/ops/extents.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/index.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

int64_t along(const std::vector<int64_t>& list, int64_t axis) { return list.size() == 1 ? list[0] : list[static_cast<size_t>(axis)]; }

std::vector<TensorType> infer_fill(const OpContext& c) {
  check_extents(c.in(1), c.in(0));
  return {c.in(0)};
}

/// The mask [N,1,H,1] or [N,1,1,W] of the pixels inside along an axis.
Value inside(Expansion& e, int axis) {
  const Shape& s = e.in(0).shape();
  Shape line{1, 1, 1, 1};
  line[2 + axis] = s[2 + axis];
  const Value place = cast(iota(e.graph(), DType::kI64, line, 2 + axis), e.compute());
  return less(place, reshape(slice(e.real(1), 1, axis, axis + 1), {s[0], 1, 1, 1}));
}

void define_fill(Expansion& e) {
  const Value x = e.in(0);
  const Value value = full(e.graph(), {.dtype = x.dtype(), .shape = {}}, e.attrs<FillOutsideAttrs>().value);
  e.set(0, where(inside(e, 0), where(inside(e, 1), x, value), value));
}

/// Zero is the zero point; what no maximum takes is the lowest integer.
void fill_integers(IntegerBuilder& b) {
  const double value = b.attrs<FillOutsideAttrs>().value;
  const QuantParams& map = b.map(0);
  b.set(fill_outside(b.in(0), b.in(1), static_cast<double>(value == 0 ? map.zero_point : map.qmin)));
}

std::vector<TensorType> infer_after(const OpContext& c) {
  const auto& a = c.attrs<ExtentsAfterAttrs>();
  const TensorType& x = c.in(0);
  GALLEY_CHECK(x.dtype == DType::kI64 && x.shape.rank() == 2 && x.shape[1] == 2, "extents must be i64 [N,2], not ", x);
  for (const std::vector<int64_t>* list : {&a.kernel_size, &a.stride, &a.padding, &a.dilation, &a.factor})
    GALLEY_CHECK(list->size() == 1 || list->size() == 2, "each option needs one or two values, but one has ", list->size());
  return {x};
}

void define_after(Expansion& e) {
  const auto& a = e.attrs<ExtentsAfterAttrs>();
  std::vector<Value> axes;
  for (int64_t axis = 0; axis < 2; ++axis) {
    const auto factor = static_cast<double>(along(a.factor, axis)), stride = static_cast<double>(along(a.stride, axis));
    const auto margin = static_cast<double>(2 * along(a.padding, axis) - along(a.dilation, axis) * (along(a.kernel_size, axis) - 1) - 1);
    const Value room = affine(slice(e.real(0), 1, axis, axis + 1), factor, margin);
    // Half a step away from whole numbers, the quotient rounds down to the right one whatever its last bits.
    const Value last = emit("floor", {affine(room, 1 / stride, 0.5 / stride)});
    axes.push_back(clamp(affine(last, 1, 1), 0, std::numeric_limits<double>::infinity()));
  }
  e.set(0, cast(concat({axes[0], axes[1]}, 1), DType::kI64));
}

}  // namespace

void FillOutsideAttrs::options(OptionVisitor& v) { v.option({.name = "value", .doc = "of the pixels outside"}, value); }
void ExtentsAfterAttrs::options(OptionVisitor& v) {
  v.option({.name = "kernel_size", .doc = "rows and columns of the window", .min = 1}, kernel_size);
  v.option({.name = "stride", .doc = "distance of windows", .min = 1}, stride);
  v.option({.name = "padding", .doc = "border around the image", .min = 0}, padding);
  v.option({.name = "dilation", .doc = "spacing between the window's elements", .min = 1}, dilation);
  v.option({.name = "factor", .doc = "by which a resize enlarges the image first", .min = 1}, factor);
}

void check_extents(const TensorType& extents, const TensorType& x) {
  GALLEY_CHECK(x.shape.rank() == 4, "x must be [N,C,H,W], not ", x);
  GALLEY_CHECK(extents.dtype == DType::kI64 && extents.shape == Shape({x.shape[0], 2}), "extents must be i64 ", Shape({x.shape[0], 2}),
               ", not ", extents);
}

void check_mean_inside(const OpContext& c, const std::vector<int64_t>& output_size) {
  if (!c.has(1)) return;
  check_extents(c.in(1), c.in(0));
  GALLEY_CHECK(std::all_of(output_size.begin(), output_size.end(), [](int64_t side) { return side == 1; }),
               "with extents there is one mean: output_size must be 1");
}

Value inside_share(Value extents, DType dtype) {
  const Value sizes = cast(extents, dtype);
  const Value pixels = mul(slice(sizes, 1, 0, 1), slice(sizes, 1, 1, 2));
  return reshape(reciprocal(clamp(pixels, 1, std::numeric_limits<double>::infinity())), {extents.shape()[0], 1, 1, 1});
}

const OpDef& fill_outside_op() {
  static const OpDef def{.name = "fill_outside",
                         .doc = "one value in all pixels outside the extents of images",
                         .inputs = {"x", Port::index("extents")},
                         .outputs = {"y"},
                         .make_attrs = make_options<FillOutsideAttrs>,
                         .infer = infer_fill,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0)) g.set(0, fill_outside(g.grad(), g.in(1)));
                             },
                         .cost = elementwise_cost<0>,
                         .quantize = QuantizeRule::kPassThrough,
                         .may_reuse = {{0, 0}},
                         .definition = define_fill,
                         .integer_form = fill_integers,
                         .cases = {"fill_outside:2x64x200x272+2x2@i64"}};
  return def;
}
const OpDef& extents_after_op() {
  static const OpDef def{.name = "extents_after",
                         .doc = "extents of the result of a layer",
                         .inputs = {Port::index("extents")},
                         .outputs = {Port::index("y")},
                         .make_attrs = make_options<ExtentsAfterAttrs>,
                         .infer = infer_after,
                         .no_gradient = "its input and result are integers",
                         .cost = elementwise_cost<0>,
                         .definition = define_after,
                         .cases = {"extents_after:2x2@i64:kernel_size=3,stride=2,padding=1"}};
  return def;
}

Value fill_outside(Value x, Value extents, double value) {
  FillOutsideAttrs attrs;
  attrs.value = value;
  return emit("fill_outside", {x, extents}, attrs);
}
Value extents_after(Value extents, const ExtentsAfterAttrs& attrs) { return emit("extents_after", {extents}, attrs); }

OpTable extents_ops() { return {&fill_outside_op(), &extents_after_op()}; }

}  // namespace galley
