#include "libcore/ops/shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

Shape shape_of(const std::vector<int64_t>& sizes) { return Shape(std::span<const int64_t>(sizes)); }

std::vector<TensorType> infer_concat(const OpContext& c) {
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    const TensorType &first = c.in(0), &x = c.in(static_cast<int>(i));
    GALLEY_CHECK(x.dtype == first.dtype, "inputs must have one dtype: input 0 ", first, ", input ", i, " ", x, "; cast one");
  }
  return {joined(c, c.attrs<ConcatAttrs>().axis)};
}

std::vector<TensorType> infer_slice(const OpContext& c) {
  const auto& attrs = c.attrs<SliceAttrs>();
  const TensorType& x = c.in(0);
  const int axis = axis_of(attrs.axis, x);
  GALLEY_CHECK(attrs.step >= 1, "the step must be at least 1, is ", attrs.step);
  TensorType y = x;
  y.format = {};
  y.shape[axis] = attrs.range(x.shape[axis])[1];
  return {y};
}

std::vector<TensorType> infer_slice_backward(const OpContext& c) {
  const auto& attrs = c.attrs<SliceBackwardAttrs>();
  const TensorType& grad = c.in(0);
  const int axis = axis_of(attrs.axis, grad);
  GALLEY_CHECK(attrs.step >= 1, "the step must be at least 1, is ", attrs.step);
  const int64_t count = attrs.slice().range(attrs.size)[1];
  GALLEY_CHECK(grad.shape[axis] == count, "the slice has ", count, " elements along axis ", axis, ", the gradient has ", grad.shape);
  TensorType y = grad;
  y.format = {};
  y.shape[axis] = attrs.size;
  return {y};
}

std::vector<TensorType> infer_pad(const OpContext& c) {
  const auto& attrs = c.attrs<PadAttrs>();
  TensorType y = c.in(0);
  GALLEY_CHECK(static_cast<int>(attrs.padding.size()) == 2 * y.shape.rank(), "padding wants two numbers a dimension (before, after), has ",
               attrs.padding.size(), " for the input ", y.shape);
  y.format = {};
  for (int d = 0; d < y.shape.rank(); ++d) {
    const int64_t before = attrs.padding[static_cast<size_t>(2 * d)], after = attrs.padding[static_cast<size_t>(2 * d + 1)];
    GALLEY_CHECK(before >= 0 && after >= 0, "padding cannot be negative: ", before, ",", after, " at dimension ", d, "; use slice");
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
    GALLEY_CHECK(size >= -1, "a size must not be negative (but one may be -1): ", size);
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
                 " do not divide by the known sizes' product ", known);
    *open = elements / known;
  }
  TensorType y;
  y.dtype = x.dtype;
  y.shape = shape_of(sizes);
  GALLEY_CHECK(y.shape.elements() == elements, x.shape, " has ", elements, " elements, ", y.shape, " has ", y.shape.elements());
  if (const std::vector<std::string>& given = c.attrs<ReshapeAttrs>().names; !given.empty()) {
    GALLEY_CHECK(static_cast<int>(given.size()) == y.shape.rank(), given.size(), " names for ", y.shape.rank(), " dimensions");
    y.names = tidy_names(given);
    return {y};
  }
  // Leading dimensions that stay keep their names.
  std::vector<std::string> names(static_cast<size_t>(y.shape.rank()));
  for (int d = 0; d < std::min(x.shape.rank(), y.shape.rank()) && x.shape[d] == y.shape[d]; ++d) {
    names[static_cast<size_t>(d)] = std::string(dim_name(x, d));
  }
  y.names = tidy_names(std::move(names));
  return {y};
}

void check_resize(const TensorType& x, const std::vector<int64_t>& size, std::string_view what, ResizeMode mode, bool align_corners) {
  if (mode == ResizeMode::kBilinear) check_floating(x, "x");  // nearest moves elements of any dtype
  GALLEY_CHECK(x.shape.rank() == 4, "the input must be [N,C,H,W], is ", x);
  GALLEY_CHECK(size.size() == 2 && size[0] >= 1 && size[1] >= 1, what, " must be two sizes of at least 1 (rows, columns)");
  GALLEY_CHECK(x.shape[2] >= 1 && x.shape[3] >= 1, "an empty image cannot be resized: ", x);
  GALLEY_CHECK(mode == ResizeMode::kBilinear || !align_corners, "align_corners is for bilinear only");
}

std::vector<TensorType> with_image_size(const TensorType& x, const std::vector<int64_t>& size) {
  TensorType y = x;
  y.format = {};
  y.shape[2] = size[0];
  y.shape[3] = size[1];
  return {y};
}

}  // namespace

void ConcatAttrs::options(OptionVisitor& v) { v.option({.name = "axis", .doc = "the axis along which inputs are joined"}, axis); }
void SliceAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "the axis that is cut"}, axis);
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
  v.option({.name = "size", .doc = "size of the axis before the cut", .min = 0, .required = true}, size);
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
  v.option({.name = "value", .doc = "what the new elements hold"}, value);
}
void PermuteAttrs::options(OptionVisitor& v) { v.option({.name = "order", .doc = "input dimension of each output dimension"}, order); }
void ReshapeAttrs::options(OptionVisitor& v) {
  v.option({.name = "shape", .doc = "new sizes; one may be -1", .min = -1}, shape);
  v.option({.name = "names", .doc = "dimension names of the output; none: leading dimensions that stay keep theirs"}, names);
}
void CastAttrs::options(OptionVisitor& v) { v.choice({.name = "dtype", .doc = "new element type"}, dtype, kDTypeNames); }
void ReducePrecisionAttrs::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = "floating type to whose values numbers are rounded"}, dtype, kDTypeNames);
}
void ReorderAttrs::options(OptionVisitor& v) { v.option({.name = "format", .doc = "new memory format"}, format); }
void ResizeAttrs::options(OptionVisitor& v) {
  v.option({.name = "size", .doc = "rows and columns of the output", .min = 1, .required = true}, size);
  v.choice({.name = "mode", .doc = "interpolation"}, mode, kResizeModeNames);
  v.option({.name = "align_corners", .doc = "corner pixels' centres stay in place (bilinear)"}, align_corners);
}
void ResizeBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "input_size", .doc = "rows and columns of the forward's input", .min = 1, .required = true}, input_size);
  v.choice({.name = "mode", .doc = "interpolation"}, mode, kResizeModeNames);
  v.option({.name = "align_corners", .doc = "corner pixels' centres stay in place (bilinear)"}, align_corners);
}
void FullAttrs::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = "element type"}, dtype, kDTypeNames);
  v.option({.name = "shape", .doc = "sizes", .min = 0}, shape);
  v.option({.name = "value", .doc = "what every element holds"}, value);
  v.option({.name = "format", .doc = "memory format"}, format);
  v.option({.name = "names", .doc = "dimension names, or none"}, names);
}

ResizeSource resize_source(int64_t out, int64_t in_size, int64_t out_size, ResizeMode mode, bool align_corners) {
  ResizeSource source;
  if (mode == ResizeMode::kNearest) {
    source.low = source.high = std::min(out * in_size / out_size, in_size - 1);
    return source;
  }
  double position = 0;
  if (align_corners) {
    position = out_size > 1 ? static_cast<double>(out * (in_size - 1)) / static_cast<double>(out_size - 1) : 0;
  } else {
    const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
    position = std::max(0.0, (static_cast<double>(out) + 0.5) * scale - 0.5);
  }
  source.low = std::min(static_cast<int64_t>(std::floor(position)), in_size - 1);
  source.high = std::min(source.low + 1, in_size - 1);
  source.fraction = position - static_cast<double>(source.low);
  return source;
}

namespace {
/// Integers under one map are copied as they are.
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
/// Adds the integers that stand for its value.
void pad_on_integers(IntegerBuilder& b) {
  PadAttrs attrs = b.attrs<PadAttrs>();
  attrs.value = static_cast<double>(quantize_value(static_cast<float>(attrs.value), b.map(0)));
  b.set(pad(b.in(0), attrs));
}
}  // namespace

namespace {
std::shared_ptr<const Options> full_in(const Options& attributes, const MemoryFormat& format) {
  auto attrs = std::make_shared<FullAttrs>(dynamic_cast<const FullAttrs&>(attributes));
  attrs->format = format.str();
  return attrs;
}
}  // namespace

const OpDef& concat_op() {
  static const OpDef def{.name = "concat",
                         .doc = "joins arrays along an axis",
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
                               cost.bytes_read = cost.bytes_written;  // only the cut is read
                               return cost;
                             },
                         .quantize = QuantizeRule::kPassThrough,
                         .cases = {"slice:16x64x56x56:axis=2,start=0,end=56,step=2"}};
  return def;
}
const OpDef& slice_backward_op() {
  static const OpDef def{.name = "slice_backward",
                         .doc = "the gradient of a slice put back into zeros",
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
                         .cases = {"cast:16x64x56x56@u8:dtype=f32"}};
  return def;
}
const OpDef& reduce_precision_op() {
  static const OpDef def{.name = "reduce_precision",
                         .doc = "values rounded to those of a floating dtype, in their own dtype",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ReducePrecisionAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           check_floating(c.in(0), "x");
                           GALLEY_CHECK(is_floating(c.attrs<ReducePrecisionAttrs>().dtype), "dtype must be floating, is ",
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
                           (void)y.format.order(y.shape.rank());  // throws where the format is not one of this rank
                           return {y};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (g.wants(0)) g.set(0, reorder(g.grad(), g.in(0).type().format));
                             },
                         .layout = {.formats = FormatRule::kReorder},
                         .quantize = QuantizeRule::kPassThrough};
  return def;
}
const OpDef& resize_op() {
  static const OpDef def{.name = "resize",
                         .doc = "resamples images, bilinear or nearest, as torch.nn.functional.interpolate without antialias",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<ResizeAttrs>,
                         .infer =
                             [](const OpContext& c) {
                               const auto& attrs = c.attrs<ResizeAttrs>();
                               check_resize(c.in(0), attrs.size, "size", attrs.mode, attrs.align_corners);
                               return with_image_size(c.in(0), attrs.size);
                             },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               const auto& forward = g.attrs<ResizeAttrs>();
                               ResizeBackwardAttrs attrs;
                               attrs.input_size = {g.in(0).shape()[2], g.in(0).shape()[3]};
                               attrs.mode = forward.mode;
                               attrs.align_corners = forward.align_corners;
                               g.set(0, resize_backward(g.grad(), attrs));
                             },
                         .cost = elementwise_cost<7>,
                         .layout = {.prefers_channels_last = true},
                         .quantize = QuantizeRule::kPassThrough,
                         .quantizable = [](const OpContext& c) { return c.attrs<ResizeAttrs>().mode == ResizeMode::kNearest; },
                         .cases = {"resize:16x3x256x256:size=[224,224]"}};
  return def;
}
const OpDef& resize_backward_op() {
  static const OpDef def{.name = "resize_backward",
                         .doc = "spreads the gradient of each output pixel over the input pixels it came from",
                         .inputs = {"grad"},
                         .outputs = {"dx"},
                         .make_attrs = make_options<ResizeBackwardAttrs>,
                         .infer =
                             [](const OpContext& c) {
                               const auto& attrs = c.attrs<ResizeBackwardAttrs>();
                               check_resize(c.in(0), attrs.input_size, "input_size", attrs.mode, attrs.align_corners);
                               return with_image_size(c.in(0), attrs.input_size);
                             },
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<8>,
                         .layout = {.prefers_channels_last = true},
                         .cases = {"resize_backward:16x64x56x56:input_size=[28,28]"}};
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
                           y.shape = shape_of(attrs.shape);
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
Value resize(Value x, const ResizeAttrs& attrs) { return emit("resize", {x}, attrs); }
Value resize_backward(Value grad, const ResizeBackwardAttrs& attrs) { return emit("resize_backward", {grad}, attrs); }
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

Value transpose(Value x, int64_t axis_a, int64_t axis_b) {
  PermuteAttrs attrs;
  attrs.order.resize(static_cast<size_t>(x.shape().rank()));
  std::iota(attrs.order.begin(), attrs.order.end(), 0);
  std::swap(attrs.order[static_cast<size_t>(axis_of(axis_a, x.type()))], attrs.order[static_cast<size_t>(axis_of(axis_b, x.type()))]);
  return permute(x, attrs);
}
Value flatten(Value x, int64_t start, int64_t end) {
  const int first = axis_of(start, x.type()), last = axis_of(end, x.type());
  GALLEY_CHECK(first <= last, "flatten wants start <= end, got ", start, " and ", end, ": input ", x.shape());
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
  GALLEY_CHECK(x.shape()[dropped] == 1, "only a dimension of size 1 can be dropped: axis ", axis, " of ", x.shape());
  ReshapeAttrs attrs;
  attrs.shape.assign(x.shape().begin(), x.shape().end());
  attrs.shape.erase(attrs.shape.begin() + dropped);
  return reshape(x, attrs);
}
std::vector<Value> split(Value x, const std::vector<int64_t>& sizes, int64_t axis) {
  const int64_t size = x.shape()[axis_of(axis, x.type())];
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  GALLEY_CHECK(total == size, "split sizes add up to ", total, ", axis ", axis, " of ", x.shape(), " has ", size);
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
  GALLEY_CHECK(count >= 1, "chunk needs at least one piece, got ", count);
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
