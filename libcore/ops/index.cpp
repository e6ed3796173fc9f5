#include "libcore/ops/index.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

/// Checks that `index` has the shape of x, except for the size of the axis.
void check_index(const TensorType& x, const TensorType& index, int axis) {
  check_integer(index, "index");
  bool fits = index.shape.rank() == x.shape.rank();
  for (int d = 0; fits && d < x.shape.rank(); ++d) fits = d == axis || index.shape[d] == x.shape[d];
  GALLEY_CHECK(fits, "index must have the sizes of x in all dimensions except ", axis, ": x ", x.shape, ", index ", index.shape);
}

std::vector<TensorType> infer_gather(const OpContext& c) {
  const TensorType &x = c.in(0), &index = c.in(1);
  const int axis = axis_of(c.attrs<GatherAttrs>().axis, x);
  check_index(x, index, axis);
  TensorType y = x;
  y.format = {};
  y.shape[axis] = index.shape[axis];
  return {y};
}

std::vector<TensorType> infer_scatter_add(const OpContext& c) {
  const auto& a = c.attrs<ScatterAddAttrs>();
  const TensorType &x = c.in(0), &index = c.in(1);
  check_not_bool(x, "x");
  const int axis = axis_of(a.axis, x);
  check_integer(index, "index");
  GALLEY_CHECK(index.shape == x.shape, "index must have the shape of x: x ", x.shape, ", index ", index.shape);
  GALLEY_CHECK(a.size >= 0, "size must not be negative, but is ", a.size);
  TensorType y = x;
  y.format = {};
  y.shape[axis] = a.size;
  return {y};
}

std::vector<TensorType> infer_one_hot(const OpContext& c) {
  const auto& a = c.attrs<OneHotAttrs>();
  const TensorType& index = c.in(0);
  check_integer(index, "index");
  GALLEY_CHECK(a.classes >= 1, "classes must be at least 1, not ", a.classes);
  TensorType y;
  y.dtype = a.dtype;
  y.shape = index.shape;
  y.shape.push_back(a.classes);
  const int axis = axis_of(a.axis, y);
  std::vector<std::string> names;
  for (int d = 0, from = 0; d < y.shape.rank(); ++d) {
    y.shape[d] = d == axis ? a.classes : index.shape[from];
    names.emplace_back(d == axis ? std::string_view() : dim_name(index, from));
    from += d == axis ? 0 : 1;
  }
  y.names = tidy_names(std::move(names));
  return {y};
}

std::vector<TensorType> infer_iota(const OpContext& c) {
  const auto& a = c.attrs<IotaAttrs>();
  TensorType y;
  y.dtype = a.dtype;
  y.shape = Shape(std::span<const int64_t>(a.shape));
  check_not_bool(y, "the result");
  (void)axis_of(a.axis, y);
  return {y};
}

}  // namespace

void GatherAttrs::options(OptionVisitor& v) { v.option({.name = "axis", .doc = "axis of the indices"}, axis); }
void ScatterAddAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "axis of the indices"}, axis);
  v.option({.name = "size", .doc = "size of that axis in the result", .min = 0, .required = true}, size);
}
void OneHotAttrs::options(OptionVisitor& v) {
  v.option({.name = "classes", .doc = "size of the new dimension", .min = 1, .required = true}, classes);
  v.option({.name = "axis", .doc = "position of the new dimension in the result"}, axis);
  v.choice({.name = "dtype", .doc = "element type of the result"}, dtype, kDTypeNames);
}
void IotaAttrs::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = "element type"}, dtype, kDTypeNames);
  v.option({.name = "shape", .doc = "sizes", .min = 0}, shape);
  v.option({.name = "axis", .doc = "axis of the indices"}, axis);
}

const OpDef& gather_op() {
  static const OpDef def{.name = "gather",
                         .doc = "selects elements along an axis by indices (torch.gather)",
                         .inputs = {"x", Port::index("index")},
                         .outputs = {"y"},
                         .make_attrs = make_options<GatherAttrs>,
                         .infer = infer_gather,
                         .gradient =
                             [](GradientBuilder& g) {
                               const int64_t axis = g.attrs<GatherAttrs>().axis;
                               if (g.wants(0))
                                 g.set(0, scatter_add(g.grad(), g.in(1), axis, g.in(0).shape()[axis_of(axis, g.in(0).type())]));
                             },
                         .cost =
                             [](const OpContext& c) {
                               Cost cost = operand_cost(c, 0);
                               cost.bytes_read = static_cast<double>(c.in(1).bytes() + c.out(0).bytes());  // only the selected elements
                               return cost;
                             },
                         .layout = {FormatRule::kContiguous},
                         .cases = {"gather:10000x256+8192x256@i64:axis=0"}};
  return def;
}
const OpDef& scatter_add_op() {
  static const OpDef def{.name = "scatter_add",
                         .doc = "adds elements into zeros at indices along an axis: the transpose of gather",
                         .inputs = {"x", Port::index("index")},
                         .outputs = {"y"},
                         .make_attrs = make_options<ScatterAddAttrs>,
                         .infer = infer_scatter_add,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0)) g.set(0, gather(g.grad(), g.in(1), g.attrs<ScatterAddAttrs>().axis));
                             },
                         .cost = input_cost<1>,
                         .layout = {FormatRule::kContiguous},
                         .cases = {"scatter_add:8192x256+8192x256@i64:axis=0,size=10000"}};
  return def;
}
const OpDef& one_hot_op() {
  static const OpDef def{.name = "one_hot",
                         .doc = "1 where the class is the index, else 0, along a new dimension of classes",
                         .inputs = {Port::index("index")},
                         .outputs = {"y"},
                         .make_attrs = make_options<OneHotAttrs>,
                         .infer = infer_one_hot,
                         .no_gradient = "it has integer inputs",
                         .layout = {FormatRule::kContiguous},
                         .cases = {"one_hot:64@i64:classes=1000"}};
  return def;
}
const OpDef& iota_op() {
  static const OpDef def{.name = "iota",
                         .doc = "an array whose elements are their index along one axis",
                         .outputs = {"y"},
                         .make_attrs = make_options<IotaAttrs>,
                         .infer = infer_iota,
                         .no_gradient = "it has no inputs",
                         .layout = {FormatRule::kContiguous}};
  return def;
}

Value gather(Value x, Value index, int64_t axis) {
  GatherAttrs attrs;
  attrs.axis = axis;
  return emit("gather", {x, index}, attrs);
}
Value scatter_add(Value x, Value index, int64_t axis, int64_t size) {
  ScatterAddAttrs attrs;
  attrs.axis = axis;
  attrs.size = size;
  return emit("scatter_add", {x, index}, attrs);
}
Value one_hot(Value index, int64_t classes, int64_t axis, DType dtype) {
  OneHotAttrs attrs;
  attrs.classes = classes;
  attrs.axis = axis;
  attrs.dtype = dtype;
  return emit("one_hot", {index}, attrs);
}
Value iota(Graph& graph, DType dtype, const Shape& shape, int64_t axis) {
  ensure_ops_registered();
  auto attrs = std::make_unique<IotaAttrs>();
  attrs->dtype = dtype;
  attrs->shape.assign(shape.begin(), shape.end());
  attrs->axis = axis;
  return graph.add_node(find_op("iota"), std::move(attrs), {}).front();
}

OpTable index_ops() { return {&gather_op(), &scatter_add_op(), &one_hot_op(), &iota_op()}; }

}  // namespace galley
