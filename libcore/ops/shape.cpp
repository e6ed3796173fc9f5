#include "libcore/ops/shape.h"

#include <algorithm>
#include <numeric>

#include "libcore/ops/convert.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

Shape shape_of(const std::vector<int64_t>& sizes) { return Shape(std::span<const int64_t>(sizes)); }

std::vector<TensorType> infer_concat(const OpContext& c) {
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    const TensorType &first = c.in(0), &x = c.in(static_cast<int>(i));
    GALLEY_CHECK(x.dtype == first.dtype, "inputs must have the same dtype: input 0 ", first, ", input ", i, " ", x, "; cast one");
  }
  return {joined(c, c.attrs<ConcatAttrs>().axis)};
}

std::vector<TensorType> infer_slice(const OpContext& c) {
  const auto& attrs = c.attrs<SliceAttrs>();
  const TensorType& x = c.in(0);
  const int axis = axis_of(attrs.axis, x);
  GALLEY_CHECK(attrs.step >= 1, "the step must be at least 1, not ", attrs.step);
  TensorType y = x;
  y.format = {};
  y.shape[axis] = attrs.range(x.shape[axis])[1];
  return {y};
}

std::vector<TensorType> infer_slice_backward(const OpContext& c) {
  const auto& attrs = c.attrs<SliceBackwardAttrs>();
  const TensorType& grad = c.in(0);
  const int axis = axis_of(attrs.axis, grad);
  GALLEY_CHECK(attrs.step >= 1, "the step must be at least 1, not ", attrs.step);
  const int64_t count = attrs.slice().range(attrs.size)[1];
  GALLEY_CHECK(grad.shape[axis] == count, "the slice has ", count, " elements along axis ", axis, ", but the gradient has ", grad.shape);
  TensorType y = grad;
  y.format = {};
  y.shape[axis] = attrs.size;
  return {y};
}

std::vector<TensorType> infer_pad(const OpContext& c) {
  const auto& attrs = c.attrs<PadAttrs>();
  TensorType y = c.in(0);
  GALLEY_CHECK(static_cast<int>(attrs.padding.size()) == 2 * y.shape.rank(),
               "padding must have two numbers per dimension (before, after), not ", attrs.padding.size(), " for the input ", y.shape);
  y.format = {};
  for (int d = 0; d < y.shape.rank(); ++d) {
    const int64_t before = attrs.padding[static_cast<size_t>(2 * d)], after = attrs.padding[static_cast<size_t>(2 * d + 1)];
    GALLEY_CHECK(before >= 0 && after >= 0, "padding cannot be negative: ", before, ",", after, " at dimension ", d,
                 "; use slice to remove elements");
    y.shape[d] += before + after;
  }
  return {y};
}

std::vector<TensorType> infer_permute(const OpContext& c) {
  const TensorType& x = c.in(0);
  const std::vector<int64_t>& order = c.attrs<PermuteAttrs>().order;
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int>(order.size()) == x.shape.rank();
  for (size_t i = 0; valid && i < sorted.size(); ++i) valid = sorted[i] == static_cast<int64_t>(i);
  GALLEY_CHECK(valid, "order ", shape_of(order), " is not a permutation of the dimensions of ", x.shape);
  TensorType y;
  y.dtype = x.dtype;
  std::vector<std::string> names;
  for (int64_t d : order) {
    y.shape.push_back(x.shape[static_cast<int>(d)]);
    names.emplace_back(dim_name(x, static_cast<int>(d)));
  }
  y.names = tidy_names(std::move(names));
  return {y};
}

std::vector<TensorType> infer_reshape(const OpContext& c) {
  const TensorType& x = c.in(0);
  std::vector<int64_t> sizes = c.attrs<ReshapeAttrs>().shape;
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& size : sizes) {
    GALLEY_CHECK(size >= -1, "sizes must not be negative, except for one -1: ", size);
    GALLEY_CHECK(size != -1 || open == nullptr, "only one size may be -1");
    if (size == -1) {
      open = &size;
    } else {
      known *= size;
    }
  }
  const int64_t elements = x.shape.elements();
  if (open != nullptr) {
    GALLEY_CHECK(known > 0 && elements % known == 0, "the ", elements, " elements of ", x.shape,
                 " are not divisible by the product of the known sizes, ", known);
    *open = elements / known;
  }
  TensorType y;
  y.dtype = x.dtype;
  y.shape = shape_of(sizes);
  GALLEY_CHECK(y.shape.elements() == elements, x.shape, " has ", elements, " elements, but ", y.shape, " has ", y.shape.elements());
  if (const std::vector<std::string>& given = c.attrs<ReshapeAttrs>().names; !given.empty()) {
    GALLEY_CHECK(static_cast<int>(given.size()) == y.shape.rank(), given.size(), " names for ", y.shape.rank(), " dimensions");
    y.names = tidy_names(given);
    return {y};
  }
  // Unchanged leading dimensions keep their names.
  std::vector<std::string> names(static_cast<size_t>(y.shape.rank()));
  for (int d = 0; d < std::min(x.shape.rank(), y.shape.rank()) && x.shape[d] == y.shape[d]; ++d) {
    names[static_cast<size_t>(d)] = std::string(dim_name(x, d));
  }
  y.names = tidy_names(std::move(names));
  return {y};
}

}  // namespace

void ConcatAttrs::options(OptionVisitor& v) { v.option({.name = "axis", .doc = "axis along which inputs are concatenated"}, axis); }
void SliceAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "axis to slice"}, axis);
  v.option({.name = "start", .doc = "first index; negative: from the end"}, start);
  v.option({.name = "end", .doc = "index after the last; negative: from the end"}, end);
  v.option({.name = "step", .doc = "every step-th index is taken", .min = 1}, step);
}
std::array<int64_t, 2> SliceAttrs::range(int64_t size) const {
  const auto clip = [size](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  const int64_t first = clip(start), last = clip(end);
  return {first, last > first ? (last - first + step - 1) / step : 0};
}
void SliceBackwardAttrs::options(OptionVisitor& v) {
  SliceAttrs attrs = slice();
  attrs.options(v);
  axis = attrs.axis;
  start = attrs.start;
  end = attrs.end;
  step = attrs.step;
  v.option({.name = "size", .doc = "size of the axis of the input", .min = 0, .required = true}, size);
}
SliceAttrs SliceBackwardAttrs::slice() const {
  SliceAttrs attrs;
  attrs.axis = axis;
  attrs.start = start;
  attrs.end = end;
  attrs.step = step;
  return attrs;
}
void PadAttrs::options(OptionVisitor& v) {
  v.option({.name = "padding", .doc = "elements before and after, for each dimension from the first", .min = 0}, padding);
  v.option({.name = "value", .doc = "value of the new elements"}, value);
}
void PermuteAttrs::options(OptionVisitor& v) { v.option({.name = "order", .doc = "input dimension of each output dimension"}, order); }
void ReshapeAttrs::options(OptionVisitor& v) {
  v.option({.name = "shape", .doc = "new sizes; one may be -1", .min = -1}, shape);
  v.option({.name = "names", .doc = "dimension names of the output; none: unchanged leading dimensions keep theirs"}, names);
}
namespace {
/// If all inputs have the same quantization parameters, their integers are copied.
void concat_on_integers(IntegerBuilder& b) {
  const auto& real = b.attrs<ConcatAttrs>();
  QuantizedConcatAttrs attrs;
  attrs.axis = real.axis;
  bool alike = true;
  std::vector<Value> x;
  for (size_t i = 0; i < b.inputs(); ++i) {
    x.push_back(b.in(i));
    attrs.add_input(b.map(i));
    alike = alike && b.map(i) == *b.result_map();
  }
  attrs.set_output(*b.result_map());
  b.set(alike ? concat(x, real) : quantized_concat(x, attrs));
}
/// Pads with the integer that represents the padding value.
void pad_on_integers(IntegerBuilder& b) {
  PadAttrs attrs = b.attrs<PadAttrs>();
  attrs.value = static_cast<double>(quantize_value(static_cast<float>(attrs.value), b.map(0)));
  b.set(pad(b.in(0), attrs));
}
}  // namespace

const OpDef& concat_op() {
  static const OpDef def{.name = "concat",
                         .doc = "concatenates arrays along an axis",
                         .inputs = {"x*"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ConcatAttrs>,
                         .infer = infer_concat,
                         .gradient =
                             [](GradientBuilder& g) {
                               const int axis = axis_of(g.attrs<ConcatAttrs>().axis, g.out().type());
                               int64_t start = 0;
                               for (size_t i = 0; i < g.node().inputs.size(); ++i) {
                                 const int64_t end = start + g.in(i).shape()[axis];
                                 if (g.wants(i)) g.set(i, slice(g.grad(), axis, start, end));
                                 start = end;
                               }
                             },
                         .place = keeps_ranges,
                         .quantize = QuantizeRule::kJoin,
                         .integer_form = concat_on_integers,
                         .cases = {"concat:16x64x56x56+16x64x56x56:axis=1"}};
  return def;
}
const OpDef& slice_op() {
  static const OpDef def{.name = "slice",
                         .doc = "every step-th index of a range of one axis",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<SliceAttrs>,
                         .infer = infer_slice,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               const auto& forward = g.attrs<SliceAttrs>();
                               SliceBackwardAttrs attrs;
                               attrs.axis = forward.axis;
                               attrs.start = forward.start;
                               attrs.end = forward.end;
                               attrs.step = forward.step;
                               attrs.size = g.in(0).shape()[axis_of(forward.axis, g.in(0).type())];
                               g.set(0, slice_backward(g.grad(), attrs));
                             },
                         .cost =
                             [](const OpContext& c) {
                               Cost cost = operand_cost(c, 0);
                               cost.bytes_read = cost.bytes_written;  // reads only the slice
                               return cost;
                             },
                         .place = keeps_ranges,
                         .quantize = QuantizeRule::kPassThrough,
                         .cases = {"slice:16x64x56x56:axis=2,start=0,end=56,step=2"}};
  return def;
}
const OpDef& slice_backward_op() {
  static const OpDef def{.name = "slice_backward",
                         .doc = "writes the gradient of a slice into an array of zeros",
                         .inputs = {"grad"},
                         .outputs = {"dx"},
                         .make_attrs = make_options<SliceBackwardAttrs>,
                         .infer = infer_slice_backward,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0)) g.set(0, slice(g.grad(), g.attrs<SliceBackwardAttrs>().slice()));
                             },
                         .cases = {"slice_backward:16x64x28x56:axis=2,start=0,end=56,step=2,size=56"}};
  return def;
}
const OpDef& pad_op() {
  static const OpDef def{.name = "pad",
                         .doc = "adds elements of one value before and after, in each dimension",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<PadAttrs>,
                         .infer = infer_pad,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               Value dx = g.grad();
                               const std::vector<int64_t>& padding = g.attrs<PadAttrs>().padding;
                               for (int d = 0; d < g.in(0).shape().rank(); ++d) {
                                 const int64_t before = padding[static_cast<size_t>(2 * d)];
                                 if (dx.shape()[d] != g.in(0).shape()[d]) dx = slice(dx, d, before, before + g.in(0).shape()[d]);
                               }
                               g.set(0, dx);
                             },
                         .place = keeps_ranges,
                         .quantize = QuantizeRule::kPassThrough,
                         .integer_form = pad_on_integers,
                         .cases = {"pad:16x64x56x56:padding=[0,0,0,0,1,1,1,1]"}};
  return def;
}
const OpDef& permute_op() {
  static const OpDef def{.name = "permute",
                         .doc = "reorders the dimensions",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<PermuteAttrs>,
                         .infer = infer_permute,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               const std::vector<int64_t>& order = g.attrs<PermuteAttrs>().order;
                               PermuteAttrs inverse;
                               inverse.order.resize(order.size());
                               for (size_t i = 0; i < order.size(); ++i)
                                 inverse.order[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
                               g.set(0, permute(g.grad(), inverse));
                             },
                         .layout = {FormatRule::kContiguous},
                         .quantize = QuantizeRule::kPassThrough,
                         .cases = {"permute:16x197x12x64:order=[0,2,1,3]"}};
  return def;
}
const OpDef& reshape_op() {
  static const OpDef def{.name = "reshape",
                         .doc = "the same elements in logical order under another shape",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ReshapeAttrs>,
                         .infer = infer_reshape,
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               ReshapeAttrs back;
                               back.shape.assign(g.in(0).shape().begin(), g.in(0).shape().end());
                               back.names = g.in(0).type().names;
                               g.set(0, reshape(g.grad(), back));
                             },
                         .work = WorkClass::kView,
                         .layout = {FormatRule::kContiguous},
                         .quantize = QuantizeRule::kPassThrough};
  return def;
}
Value concat(std::span<const Value> x, const ConcatAttrs& attrs) {
  return emit_all("concat", std::make_unique<ConcatAttrs>(attrs), x).front();
}
Value concat(std::initializer_list<Value> x, int64_t axis) {
  ConcatAttrs attrs;
  attrs.axis = axis;
  return concat(std::span<const Value>(x.begin(), x.size()), attrs);
}
Value slice(Value x, const SliceAttrs& attrs) { return emit("slice", {x}, attrs); }
Value slice(Value x, int64_t axis, int64_t start, int64_t end) {
  SliceAttrs attrs;
  attrs.axis = axis;
  attrs.start = start;
  attrs.end = end;
  return slice(x, attrs);
}
Value slice_backward(Value grad, const SliceBackwardAttrs& attrs) { return emit("slice_backward", {grad}, attrs); }
Value pad(Value x, const PadAttrs& attrs) { return emit("pad", {x}, attrs); }
Value pad(Value x, std::vector<int64_t> padding, double value) {
  PadAttrs attrs;
  attrs.padding = std::move(padding);
  attrs.value = value;
  return pad(x, attrs);
}
Value permute(Value x, const PermuteAttrs& attrs) { return emit("permute", {x}, attrs); }
Value permute(Value x, std::vector<int64_t> order) {
  PermuteAttrs attrs;
  attrs.order = std::move(order);
  return permute(x, attrs);
}
Value reshape(Value x, const ReshapeAttrs& attrs) { return emit("reshape", {x}, attrs); }
Value reshape(Value x, std::initializer_list<int64_t> shape) {
  ReshapeAttrs attrs;
  attrs.shape = shape;
  return reshape(x, attrs);
}
Value reshape(Value x, const Shape& shape) {
  if (x.shape() == shape) return x;
  ReshapeAttrs attrs;
  attrs.shape.assign(shape.begin(), shape.end());
  return reshape(x, attrs);
}
Value transpose(Value x, int64_t axis_a, int64_t axis_b) {
  PermuteAttrs attrs;
  attrs.order.resize(static_cast<size_t>(x.shape().rank()));
  std::iota(attrs.order.begin(), attrs.order.end(), 0);
  std::swap(attrs.order[static_cast<size_t>(axis_of(axis_a, x.type()))], attrs.order[static_cast<size_t>(axis_of(axis_b, x.type()))]);
  return permute(x, attrs);
}
Value flatten(Value x, int64_t start, int64_t end) {
  const int first = axis_of(start, x.type()), last = axis_of(end, x.type());
  GALLEY_CHECK(first <= last, "flatten needs start <= end, not ", start, " and ", end, ": input ", x.shape());
  Shape shape;
  for (int d = 0; d < x.shape().rank(); ++d) {
    if (d > first && d <= last) {
      shape[first] *= x.shape()[d];
    } else {
      shape.push_back(x.shape()[d]);
    }
  }
  return reshape(x, shape);
}
Value unsqueeze(Value x, int64_t axis) {
  const int rank = x.shape().rank();
  GALLEY_CHECK(axis >= -rank - 1 && axis <= rank, "axis ", axis, " is out of range for a new dimension of ", x.shape());
  ReshapeAttrs attrs;
  attrs.shape.assign(x.shape().begin(), x.shape().end());
  attrs.shape.insert(attrs.shape.begin() + (axis < 0 ? axis + rank + 1 : axis), 1);
  return reshape(x, attrs);
}
Value squeeze(Value x, int64_t axis) {
  const int dropped = axis_of(axis, x.type());
  GALLEY_CHECK(x.shape()[dropped] == 1, "only a dimension of size 1 can be removed: axis ", axis, " of ", x.shape());
  ReshapeAttrs attrs;
  attrs.shape.assign(x.shape().begin(), x.shape().end());
  attrs.shape.erase(attrs.shape.begin() + dropped);
  return reshape(x, attrs);
}
std::vector<Value> split(Value x, const std::vector<int64_t>& sizes, int64_t axis) {
  const int64_t size = x.shape()[axis_of(axis, x.type())];
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  GALLEY_CHECK(total == size, "split sizes add up to ", total, ", but axis ", axis, " of ", x.shape(), " has ", size);
  std::vector<Value> pieces;
  int64_t start = 0;
  for (int64_t piece : sizes) {
    pieces.push_back(slice(x, axis, start, start + piece));
    start += piece;
  }
  return pieces;
}
std::vector<Value> chunk(Value x, int64_t count, int64_t axis) {
  const int64_t size = x.shape()[axis_of(axis, x.type())];
  GALLEY_CHECK(count >= 1, "chunk needs at least one piece, not ", count);
  const int64_t piece = std::max<int64_t>(1, (size + count - 1) / count);
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < size; start += piece) sizes.push_back(std::min(piece, size - start));
  return split(x, sizes, axis);
}

OpTable shape_ops() {
  return {&concat_op(),  &slice_op(),  &slice_backward_op(),  &pad_op(), &permute_op(), &reshape_op(), &cast_op(), &reduce_precision_op(),
          &reorder_op(), &resize_op(), &resize_backward_op(), &full_op()};
}

}  // namespace galley
