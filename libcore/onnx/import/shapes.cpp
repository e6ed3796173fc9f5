// Imports operators that move data or depend only on shapes.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/onnx/import/indices.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargestTarget = int64_t{1} << 40;  // limit of a size in the file
constexpr int64_t kMaxGenerated = int64_t{1} << 22;   // limit of elements of a generated constant

void constant(Call& c) {
  if (const OnnxAttribute* value = c.find("value"); value != nullptr) {
    GALLEY_CHECK_INPUT(value->tensor && value->tensor->dtype, "its value has the type ", value->tensor ? value->tensor->dtype_text : "?",
                       ", which Galley does not support");
    return c.set_constant(c.to.read(*value->tensor));
  }
  if (c.find("value_int") != nullptr) {
    Tensor one(DType::kI64, {});
    *one.data_as<int64_t>() = c.integer("value_int", 0);
    return c.set_constant(one);
  }
  if (c.find("value_float") != nullptr) {
    Tensor one(DType::kF32, {});
    one.from_doubles({c.real("value_float", 0)});
    return c.set_constant(one);
  }
  if (c.find("value_ints") != nullptr) return c.set_constant(from_ints(c.ints("value_ints", {})));
  if (const OnnxAttribute* values = c.find("value_floats"); values != nullptr) {
    Tensor list(DType::kF32, {static_cast<int64_t>(values->floats.size())});
    list.from_doubles(values->floats);
    return c.set_constant(list);
  }
  c.refuse("it has no value of a supported kind");
}

void constant_of_shape(Call& c) {
  const Shape shape = shape_of(c.ints(0));
  double fill = 0;
  DType dtype = DType::kF32;
  if (const OnnxAttribute* value = c.find("value"); value != nullptr) {
    GALLEY_CHECK_INPUT(value->tensor && value->tensor->dtype && value->tensor->shape.elements() == 1, "its value must be a single number");
    const Tensor number = c.to.read(*value->tensor);
    fill = number.to_doubles().front();
    dtype = number.dtype();
  }
  if (shape.rank() <= 1 && shape.elements() <= 4096 && !is_floating(dtype)) {
    Tensor list(dtype, shape);
    list.from_doubles(std::vector<double>(static_cast<size_t>(shape.elements()), fill));
    return c.set_constant(list);
  }
  GALLEY_CHECK_INPUT(dtype != DType::kF64 && dtype != DType::kF16 && dtype != DType::kBF16, "its value is ", dtype,
                     ", but Galley computes in f32");
  c.set(full(c.to.builder().graph(), {.dtype = dtype, .shape = shape}, fill));
}

void shape_node(Call& c) {
  const Item& item = c.item(0);
  Shape shape = item.value ? item.value.shape() : item.constant.shape();
  if (item.transposed) shape = Shape{shape[1], shape[0]};
  const int64_t rank = shape.rank();
  const auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = clip(c.integer("start", 0)), end = clip(c.integer("end", rank));
  c.set_constant(from_ints({shape.begin() + start, shape.begin() + std::max(start, end)}));
}

void reshape_node(Call& c) {
  std::vector<int64_t> to = c.ints(1);
  const bool zeros = c.integer("allowzero", 0) != 0;
  const Value x = c.x(0);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] == 0 && !zeros) {
      GALLEY_CHECK_INPUT(static_cast<int>(i) < x.shape().rank(), "size ", i, " is 0 (copy), but its input is ", x.type());
      to[i] = x.shape()[static_cast<int>(i)];
    }
    GALLEY_CHECK_INPUT(to[i] >= -1 && to[i] <= kLargestTarget, "an output size is ", to[i], ", but must be between -1 and ",
                       kLargestTarget);
  }
  // A file exported for a fixed batch contains the batch in its shapes.
  if (const auto declared = c.to.other_batch(); declared && !to.empty() && to[0] == *declared && x.shape().rank() > 0 &&
                                                c.to.has_batch_size(c.node, x.shape()[0] % *c.to.batch() == 0))
    to[0] = *c.to.batch();
  GALLEY_CHECK_INPUT(to.size() <= static_cast<size_t>(Shape::kMaxRank), "its result has ", to.size(), " dimensions, but at most ",
                     Shape::kMaxRank, " are supported");
  ReshapeAttrs attrs;
  attrs.shape = to;
  c.set(reshape(x, attrs));
}

void flatten_node(Call& c) {
  const Value x = c.x(0);
  const int64_t rank = x.shape().rank(), axis = c.integer("axis", 1);
  GALLEY_CHECK_INPUT(axis >= -rank && axis <= rank, "axis ", axis, " is out of range for ", x.type());
  int64_t rows = 1, columns = 1;
  for (int i = 0; i < rank; ++i) (i < (axis < 0 ? axis + rank : axis) ? rows : columns) *= x.shape()[i];
  c.set(reshape(x, Shape{rows, columns}));
}

void squeeze_node(Call& c) {
  const Value x = c.x(0);
  c.set(reshape(x, squeezed_shape(x.shape(), c.axes(1, {}))));
}

void unsqueeze_node(Call& c) {
  const Value x = c.x(0);
  c.set(reshape(x, unsqueezed_shape(x.shape(), c.axes(1, {}))));
}

}  // namespace

Value permuted(Call& c, Value x, std::vector<int64_t> order) {
  if (const Node* before = c.to.made_by(x); before != nullptr && before->is("permute")) {
    const std::vector<int64_t>& first = before->attrs<PermuteAttrs>().order;
    for (int64_t& axis : order) axis = first[static_cast<size_t>(axis_in(axis, std::ssize(first)))];
    x = x.graph().at(before->inputs[0]);
  }
  bool same = std::ssize(order) == x.shape().rank();
  for (size_t i = 0; same && i < order.size(); ++i) same = order[i] == static_cast<int64_t>(i);
  return same ? x : permute(x, std::move(order));
}

namespace {

void transpose_node(Call& c) {
  const Item& item = c.item(0);
  const int rank = item.value ? item.value.shape().rank() : item.constant.shape().rank();
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.rbegin(), order.rend(), 0);
  order = c.ints("perm", order);
  // A transposed weight matrix: products recognize it.
  if (item.is_weight && !item.transposed && rank == 2 && order == std::vector<int64_t>{1, 0} && !c.node.outputs.empty()) {
    Item transposed = item;
    transposed.value = {};
    transposed.transposed = true;
    transposed.name = c.node.inputs[0];
    return c.to.set(c.node.outputs[0], std::move(transposed));
  }
  c.set(permuted(c, c.x(0), std::move(order)));
}

void concat_node(Call& c) {
  if (c.inputs() == 1) {
    c.find("axis");
    return c.pass(0);
  }
  std::vector<Value> parts;
  for (size_t i = 0; i < c.inputs(); ++i) {
    // Known empty parts are the keys and values of no earlier tokens.
    const std::optional<Tensor> known = c.constant(i);
    if (!known || known->elements() > 0) parts.push_back(c.x(i));
  }
  GALLEY_CHECK_INPUT(c.inputs() > 0, "it has no inputs");
  if (parts.empty()) parts.push_back(c.x(0));
  ConcatAttrs attrs;
  attrs.axis = axis_in(c.integer("axis", 0), parts.front().shape().rank());
  if (parts.size() == 1) return c.set(parts.front());
  c.set(concat(parts, attrs));
}

void split_node(Call& c) {
  const Value x = c.x(0);
  const int64_t axis = axis_in(c.integer("axis", 0), x.shape().rank()), size = x.shape()[static_cast<int>(axis)];
  const auto count = static_cast<int64_t>(c.node.outputs.size());
  c.integer("num_outputs", count);
  std::vector<int64_t> sizes = c.has(1) ? c.ints(1) : c.ints("split", {});  // an attribute before opset 13
  if (sizes.empty()) {
    const int64_t each = count == 0 ? 0 : (size + count - 1) / count;
    for (int64_t i = 0; i < count; ++i) sizes.push_back(std::clamp<int64_t>(size - i * each, 0, each));
  }
  GALLEY_CHECK_INPUT(static_cast<int64_t>(sizes.size()) == count, "it has ", sizes.size(), " sizes for ", count, " outputs");
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    GALLEY_CHECK_INPUT(sizes[i] >= 0 && sizes[i] <= size - start, "its sizes exceed the size ", size, " of axis ", axis);
    c.set(i, slice(x, axis, start, start + sizes[i]));
    start += sizes[i];
  }
  GALLEY_CHECK_INPUT(start == size, "its sizes add up to ", start, ", but axis ", axis, " has size ", size);
}

/// Slices one axis, also with a negative step.
Value slice_axis(Call& c, Value x, int axis, int64_t start, int64_t end, int64_t step) {
  const int64_t size = x.shape()[axis];
  const auto from_zero = [&](int64_t i, int64_t least, int64_t most) {
    return std::clamp(i < 0 ? (i < -size ? least : i + size) : i, least, most);
  };
  if (step > 0) {
    SliceAttrs attrs;
    attrs.axis = axis;
    attrs.start = from_zero(start, 0, size);
    attrs.end = std::max(attrs.start, from_zero(end, 0, size));
    attrs.step = std::min(step, size + 1);
    return slice(x, attrs);
  }
  const int64_t first = from_zero(start, -1, size - 1), last = from_zero(end, -1, size - 1), by = std::max(step, -size - 1);
  GALLEY_CHECK_INPUT((first - last) / -by <= kMaxGenerated, "it takes ", (first - last) / -by,
                     " elements with a negative step, but at most ", kMaxGenerated, " are supported");
  std::vector<int64_t> places;
  for (int64_t i = first; i > last && i >= 0; i += by) places.push_back(i);
  return places.empty() ? slice(x, axis, 0, 0) : select_along(c, x, axis, places);
}

/// Before opset 10, the ranges are attributes.
void slice_node(Call& c) {
  Value x = c.x(0);
  const bool old = c.find("starts") != nullptr;
  const std::vector<int64_t> starts = old ? c.ints("starts", {}) : c.ints(1), ends = old ? c.ints("ends", {}) : c.ints(2);
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (old) axes = c.ints("axes", axes);
  if (c.has(3)) axes = c.ints(3);
  if (c.has(4)) steps = c.ints(4);
  GALLEY_CHECK_INPUT(ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size(),
                     "starts, ends, axes and steps must have equal lengths");
  for (size_t i = 0; i < starts.size(); ++i) {
    GALLEY_CHECK_INPUT(steps[i] != 0, "a step is 0");
    x = slice_axis(c, x, axis_in(axes[i], x.shape().rank()), starts[i], ends[i], steps[i]);
  }
  c.set(x);
}

/// Input positions for an axis of `size` that is padded by `before` and `after` elements.
std::vector<int64_t> padded_places(const Call& c, const std::string& mode, int64_t size, int64_t before, int64_t after) {
  std::vector<int64_t> places;
  GALLEY_CHECK_INPUT(size >= 1 && size + before + after <= (1 << 24), "it pads an axis of size ", size, " by ", before, " and ", after,
                     ", which is not supported");
  for (int64_t i = -before; i < size + after; ++i) {
    if (mode == "edge") {
      places.push_back(std::clamp<int64_t>(i, 0, size - 1));
    } else if (mode == "wrap") {
      places.push_back((i % size + size) % size);
    } else if (mode == "reflect") {
      const int64_t period = std::max<int64_t>(1, 2 * (size - 1)), at = (i % period + period) % period;
      places.push_back(at < size ? at : period - at);
    } else {
      c.refuse(cat("mode '", mode, "' is not supported"));
    }
  }
  return places;
}

double pad_value(Call& c) {
  if (!c.has(2)) return c.real("value", 0);
  const std::optional<double> known = c.scalar(2);
  GALLEY_CHECK_INPUT(known.has_value(), "its value must be constant");
  return *known;
}

/// Before opset 11, the sizes are attributes. Negative sizes crop.
void pad_node(Call& c) {
  Value x = c.x(0);
  const std::string mode = c.text("mode", "constant");
  const std::vector<int64_t> pads = c.has(1) ? c.ints(1) : c.ints("pads", {});
  const auto rank = static_cast<size_t>(x.shape().rank());
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints(3);
  GALLEY_CHECK_INPUT(pads.size() == 2 * axes.size(), "it has ", pads.size(), " padding sizes for ", axes.size(),
                     " axes, but must have two per axis");
  PadAttrs attrs;
  attrs.padding.assign(2 * rank, 0);
  attrs.value = pad_value(c);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = axis_in(axes[i], x.shape().rank());
    int64_t before = pads[i], after = pads[axes.size() + i];
    for (const int64_t more : {before, after})
      GALLEY_CHECK_INPUT(more >= -(1 << 24) && more <= (1 << 24), "a padding size is ", more, ", which is not supported");
    const int64_t size = x.shape()[axis], first = std::max<int64_t>(0, -before), last = size - std::max<int64_t>(0, -after);
    GALLEY_CHECK_INPUT(first <= last, "it crops more than the ", size, " elements of axis ", axis);
    if (first > 0 || last < size) x = slice(x, axis, first, last);
    before = std::max<int64_t>(0, before);
    after = std::max<int64_t>(0, after);
    if (mode == "constant") {
      attrs.padding[static_cast<size_t>(2 * axis)] = before;
      attrs.padding[static_cast<size_t>(2 * axis + 1)] = after;
    } else if (before + after > 0) {
      x = select_along(c, x, axis, padded_places(c, mode, x.shape()[axis], before, after));
    }
  }
  const bool none = std::all_of(attrs.padding.begin(), attrs.padding.end(), [](int64_t more) { return more == 0; });
  c.set(none ? x : pad(x, attrs));
}

void expand_node(Call& c) {
  const Value x = c.x(0);
  const Shape to = broadcast_shapes(x.shape(), shape_of(c.ints(1)));
  c.set(to == x.shape() ? x : broadcast_to(x, to));
}

void size_node(Call& c) {
  const Item& item = c.item(0);
  Tensor count(DType::kI64, {});
  *count.data_as<int64_t>() = item.value ? item.value.shape().elements() : item.constant.elements();
  c.set_constant(count);
}

/// For each axis in turn: adds an axis of copies and merges the two.
void tile_node(Call& c) {
  Value x = c.x(0);
  const std::vector<int64_t> repeats = c.ints(1);
  const int rank = x.shape().rank();
  GALLEY_CHECK_INPUT(static_cast<int>(repeats.size()) == rank && rank < Shape::kMaxRank, "it has ", repeats.size(),
                     " repeats, which does not fit ", x.type());
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t count = repeats[static_cast<size_t>(axis)];
    GALLEY_CHECK_INPUT(count >= 0 && count <= (1 << 24), "it repeats an axis ", count, " times, which is not supported");
    if (count == 1) continue;
    Shape spread = x.shape(), joined = x.shape();
    GALLEY_CHECK_INPUT(!__builtin_mul_overflow(joined[axis], count, &joined[axis]), "it repeats axis ", axis, " of ", x.type(), " ", count,
                       " times, which is too large");
    check_sizes(joined, "its result");
    spread = unsqueeze(x, axis).shape();
    spread[axis] = count;
    x = reshape(broadcast_to(unsqueeze(x, axis), spread), joined);
  }
  c.set(x);
}

/// DCR: the block position is the outer part of the channel index; CRD: the inner part.
void depth_to_space(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 4, "its input is ", x.type(), ", but must have dimensions [N,C,H,W]");
  const int64_t block = c.integer("blocksize", 0), n = x.shape()[0], h = x.shape()[2], w = x.shape()[3];
  GALLEY_CHECK_INPUT(block >= 1 && block <= 4096 && x.channels() % (block * block) == 0, "blocksize ", block, " does not fit ", x.type());
  const int64_t channels = x.channels() / (block * block);
  const std::string mode = c.text("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") c.refuse(cat("mode '", mode, "' is not supported"));
  const Value y = mode == "DCR" ? permute(reshape(x, {n, block, block, channels, h, w}), {0, 3, 4, 1, 5, 2})
                                : permute(reshape(x, {n, channels, block, block, h, w}), {0, 1, 4, 2, 5, 3});
  c.set(reshape(y, {n, channels, h * block, w * block}));
}
void space_to_depth(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() == 4, "its input is ", x.type(), ", but must have dimensions [N,C,H,W]");
  const int64_t block = c.integer("blocksize", 0), n = x.shape()[0], channels = x.channels();
  GALLEY_CHECK_INPUT(block >= 1 && block <= 4096 && x.shape()[2] % block == 0 && x.shape()[3] % block == 0, "blocksize ", block,
                     " does not fit ", x.type());
  const int64_t h = x.shape()[2] / block, w = x.shape()[3] / block;
  int64_t more = 0;
  GALLEY_CHECK_INPUT(!__builtin_mul_overflow(channels, block * block, &more), "blocksize ", block, " does not fit ", x.type());
  c.set(reshape(permute(reshape(x, {n, channels, h, block, w, block}), {0, 3, 5, 1, 2, 4}), {n, more, h, w}));
}

/// The upper or lower triangle of each matrix; zeros elsewhere.
void triangle(Call& c) {
  const Value x = c.x(0);
  GALLEY_CHECK_INPUT(x.shape().rank() >= 2, "its input is ", x.type(), ", but must have at least 2 dimensions");
  int64_t k = 0;
  if (c.has(1)) {
    const std::vector<int64_t> given = c.ints(1);
    GALLEY_CHECK_INPUT(given.size() == 1, "k must be a single number");
    k = given[0];
  }
  const bool upper = c.integer("upper", 1) != 0;
  const int64_t rows = x.shape()[-2], columns = x.shape()[-1];
  if (rows * columns == 0) return c.pass(0);
  const double diagonal = static_cast<double>(std::clamp(k, -rows - columns, rows + columns));
  Graph& graph = c.to.builder().graph();
  const Value distance = sub(iota(graph, DType::kI64, {1, columns}, 1), iota(graph, DType::kI64, {rows, 1}, 0));
  const Value at = c.scalar_value(DType::kI64, diagonal), zero = c.scalar_value(x.dtype(), 0);
  c.set(where(upper ? less(distance, at) : greater(distance, at), zero, x));
}

/// Ones on a diagonal; only the shape of the input matters.
void eye_like(Call& c) {
  const Item& item = c.item(0);
  const Shape shape = item.value ? item.value.shape() : item.constant.shape();
  GALLEY_CHECK_INPUT(shape.rank() == 2 && shape.elements() <= kMaxGenerated, "its input has shape ", shape,
                     ", but must be a matrix with at most ", kMaxGenerated, " elements");
  DType dtype = item.value ? item.value.dtype() : item.constant.dtype();
  if (c.find("dtype") != nullptr) {
    const OnnxType* type = find_onnx_type(static_cast<int32_t>(std::clamp<int64_t>(c.integer("dtype", 0), 0, 1000)));
    if (type == nullptr || !type->dtype) c.refuse("its dtype is not supported");
    dtype = *type->dtype;
  }
  const int64_t k = std::clamp<int64_t>(c.integer("k", 0), -(kMaxGenerated + 1), kMaxGenerated + 1);
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(i % shape[1] - i / shape[1] == k ? 1 : 0);
  Tensor eye(dtype, shape);
  eye.from_doubles(values);
  c.set_constant(eye);
}

/// The inputs must be constant, because they determine the size of the result.
void range_node(Call& c) {
  std::vector<double> given;
  for (size_t i : {0u, 1u, 2u}) {
    const std::optional<double> known = c.scalar(i);
    GALLEY_CHECK_INPUT(known.has_value() && std::isfinite(*known), "its inputs must be constant");
    given.push_back(*known);
  }
  GALLEY_CHECK_INPUT(given[2] != 0, "its step is 0");
  const double steps = std::ceil((given[1] - given[0]) / given[2]);
  GALLEY_CHECK_INPUT(std::isfinite(steps) && steps <= static_cast<double>(kMaxGenerated), "it has ", steps, " numbers, but at most ",
                     kMaxGenerated, " are supported");
  const auto count = static_cast<int64_t>(std::max(0.0, steps));
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(given[0] + static_cast<double>(i) * given[2]);
  Tensor list(c.constant(0)->dtype(), {static_cast<int64_t>(values.size())});
  list.from_doubles(values);
  c.set_constant(list);
}

}  // namespace

Shape squeezed_shape(const Shape& from, std::vector<int64_t> axes) {
  const bool all = axes.empty();
  for (int64_t& axis : axes) axis = axis_in(axis, from.rank());
  Shape shape;
  for (int i = 0; i < from.rank(); ++i) {
    const bool named = all ? from[i] == 1 : std::find(axes.begin(), axes.end(), i) != axes.end();
    GALLEY_CHECK_INPUT(!named || from[i] == 1, "axis ", i, " of ", from, " must have size 1");
    if (!named) shape.push_back(from[i]);
  }
  return shape;
}

Shape unsqueezed_shape(const Shape& from, std::vector<int64_t> axes) {
  const int64_t rank = from.rank() + static_cast<int64_t>(axes.size());
  GALLEY_CHECK_INPUT(!axes.empty() && rank <= Shape::kMaxRank, "it adds ", axes.size(), " dimensions to ", from,
                     ", but the result may have at most ", Shape::kMaxRank);
  for (int64_t& axis : axes) axis = axis_in(axis, rank);
  std::sort(axes.begin(), axes.end());
  GALLEY_CHECK_INPUT(std::adjacent_find(axes.begin(), axes.end()) == axes.end(), "an axis is repeated");
  Shape shape;
  int next = 0;
  for (int64_t i = 0; i < rank; ++i) shape.push_back(std::binary_search(axes.begin(), axes.end(), i) ? 1 : from[next++]);
  return shape;
}

MakeTable shape_rows() {
  return {{"Constant", constant},
          {"ConstantOfShape", constant_of_shape},
          {"Shape", shape_node},
          {"Size", size_node},
          {"Range", range_node},
          {"EyeLike", eye_like},
          {"Reshape", reshape_node},
          {"Flatten", flatten_node},
          {"Squeeze", squeeze_node},
          {"Unsqueeze", unsqueeze_node},
          {"Transpose", transpose_node},
          {"Concat", concat_node},
          {"Split", split_node},
          {"Slice", slice_node},
          {"Pad", pad_node},
          {"Expand", expand_node},
          {"Tile", tile_node},
          {"DepthToSpace", depth_to_space},
          {"SpaceToDepth", space_to_depth},
          {"Trilu", triangle}};
}

}  // namespace galley::onnx_import
