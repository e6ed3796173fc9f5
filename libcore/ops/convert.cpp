#include "libcore/ops/convert.h"

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {

void CastAttrs::options(OptionVisitor& v) { v.choice({.name = "dtype", .doc = "new element type"}, dtype, kDTypeNames); }
void ReducePrecisionAttrs::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = "floating-point type to which values are rounded"}, dtype, kDTypeNames);
}
void ReorderAttrs::options(OptionVisitor& v) { v.option({.name = "format", .doc = "new memory format"}, format); }
void FullAttrs::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = "element type"}, dtype, kDTypeNames);
  v.option({.name = "shape", .doc = "sizes", .min = 0}, shape);
  v.option({.name = "value", .doc = "value of every element"}, value);
  v.option({.name = "format", .doc = "memory format"}, format);
  v.option({.name = "names", .doc = "dimension names, or none"}, names);
}

namespace {
std::shared_ptr<const Options> full_in(const Options& attributes, const MemoryFormat& format) {
  auto attrs = std::make_shared<FullAttrs>(dynamic_cast<const FullAttrs&>(attributes));
  attrs->format = format.str();
  return attrs;
}
}  // namespace

const OpDef& cast_op() {
  static const OpDef def{.name = "cast",
                         .doc = "the same values in another dtype: rounded to nearest even, toward zero for integers",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<CastAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           TensorType y = c.in(0);
                           y.dtype = c.attrs<CastAttrs>().dtype;
                           return {y};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0) && g.grad()) g.set(0, cast(g.grad(), g.in(0).dtype()));
                             },
                         .place = keeps_ranges,
                         .cases = {"cast:16x64x56x56@u8:dtype=f32"}};
  return def;
}
const OpDef& reduce_precision_op() {
  static const OpDef def{.name = "reduce_precision",
                         .doc = "values rounded to a floating-point dtype, stored in their own dtype",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ReducePrecisionAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           check_floating(c.in(0), "x");
                           GALLEY_CHECK(is_floating(c.attrs<ReducePrecisionAttrs>().dtype), "dtype must be floating, not ",
                                        c.attrs<ReducePrecisionAttrs>().dtype);
                           return {c.in(0)};
                         },
                         .gradient = [](GradientBuilder& g) { g.set(0, g.grad()); },
                         .cost = elementwise_cost<1>,
                         .precision = PrecisionRule::kKeepF32,
                         .may_reuse = {{0, 0}}};
  return def;
}
const OpDef& reorder_op() {
  static const OpDef def{.name = "reorder",
                         .doc = "the same values in another memory format",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ReorderAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           TensorType y = c.in(0);
                           y.format = MemoryFormat::parse(c.attrs<ReorderAttrs>().format);
                           (void)y.format.order(y.shape.rank());  // throws if the rank does not suit the format
                           return {y};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0)) g.set(0, reorder(g.grad(), g.in(0).type().format));
                             },
                         .place = keeps_ranges,
                         .layout = {.formats = FormatRule::kReorder},
                         .quantize = QuantizeRule::kPassThrough};
  return def;
}
const OpDef& full_op() {
  static const OpDef def{.name = "full",
                         .doc = "a constant array",
                         .inputs = {},
                         .outputs = {"y"},
                         .make_attrs = make_options<FullAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           const auto& attrs = c.attrs<FullAttrs>();
                           TensorType y;
                           y.dtype = attrs.dtype;
                           y.shape = Shape(std::span<const int64_t>(attrs.shape));
                           y.format = MemoryFormat::parse(attrs.format);
                           y.names = attrs.names;
                           GALLEY_CHECK(y.names.empty() || static_cast<int>(y.names.size()) == y.shape.rank(), y.names.size(),
                                        " dimension names for shape ", y.shape);
                           (void)y.format.order(y.shape.rank());
                           return {y};
                         },
                         .no_gradient = "it has no inputs",
                         .layout = {.formats = FormatRule::kExplicit, .with_format = full_in}};
  return def;
}

Value cast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  CastAttrs attrs;
  attrs.dtype = dtype;
  return emit("cast", {x}, attrs);
}
Value reduce_precision(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  ReducePrecisionAttrs attrs;
  attrs.dtype = dtype;
  return emit("reduce_precision", {x}, attrs);
}
Value reorder(Value x, const MemoryFormat& format) {
  if (x.type().format == format) return x;
  ReorderAttrs attrs;
  attrs.format = format.str();
  return emit("reorder", {x}, attrs);
}
Value full(Graph& graph, const TensorType& type, double value) {
  ensure_ops_registered();
  auto attrs = std::make_unique<FullAttrs>();
  attrs->dtype = type.dtype;
  attrs->shape.assign(type.shape.begin(), type.shape.end());
  attrs->value = value;
  attrs->format = type.format.str();
  attrs->names = type.names;
  return graph.add_node(find_op("full"), std::move(attrs), {}).front();
}

}  // namespace galley
