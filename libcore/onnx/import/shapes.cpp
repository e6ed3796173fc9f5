// What moves elements or knows their number; reductions.

#include <algorithm>
#include <numeric>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;  // of a size that the file gives

int64_t axis_in(int64_t axis, int64_t rank) {
  GALLEY_CHECK_INPUT(axis >= -rank && axis < rank, "axis ", axis, " is out of range for rank ", rank);
  return axis < 0 ? axis + rank : axis;
}
Shape shape_of(const std::vector<int64_t>& sizes) {
  GALLEY_CHECK_INPUT(sizes.size() <= static_cast<size_t>(Shape::kMaxRank), "an array of ", sizes.size(), " dimensions, at most ", Shape::kMaxRank, " are known");
  for (const int64_t size : sizes) GALLEY_CHECK_INPUT(size >= 0 && size <= kLargest, "an array has the size ", size);
  return Shape(std::span<const int64_t>(sizes));
}

void constant(Call& c) {
  if (const OnnxAttribute* value = c.find("value"); value != nullptr) {
    GALLEY_CHECK_INPUT(value->tensor && value->tensor->dtype, "its value has the type ", value->tensor ? value->tensor->dtype_text : "?", ", with which Galley does not compute");
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
  c.refuse("it has no value that is known");
}

void constant_of_shape(Call& c) {
  const Shape shape = shape_of(c.ints(0));
  double fill = 0;
  DType dtype = DType::kF32;
  if (const OnnxAttribute* value = c.find("value"); value != nullptr) {
    GALLEY_CHECK_INPUT(value->tensor && value->tensor->dtype && value->tensor->shape.elements() == 1, "its value is not one number");
    const Tensor number = c.to.read(*value->tensor);
    fill = number.to_doubles().front();
    dtype = number.dtype();
  }
  if (shape.rank() <= 1 && shape.elements() <= 4096 && !is_floating(dtype)) {
    Tensor list(dtype, shape);
    list.from_doubles(std::vector<double>(static_cast<size_t>(shape.elements()), fill));
    return c.set_constant(list);
  }
  GALLEY_CHECK_INPUT(dtype != DType::kF64 && dtype != DType::kF16 && dtype != DType::kBF16, "it makes numbers of ", dtype, ": Galley computes in f32");
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
      GALLEY_CHECK_INPUT(static_cast<int>(i) < x.shape().rank(), "size ", i, " is to be copied from ", x.type());
      to[i] = x.shape()[static_cast<int>(i)];
    }
    GALLEY_CHECK_INPUT(to[i] >= -1 && to[i] <= kLargest, "a new size is ", to[i]);
  }
  // A file that was made for one batch spells it in its shapes.
  if (const auto spelled = c.to.other_batch(); spelled && !to.empty() && to[0] == *spelled && x.shape().rank() > 0 && x.shape()[0] == c.to.batch()) to[0] = c.to.batch();
  GALLEY_CHECK_INPUT(to.size() <= static_cast<size_t>(Shape::kMaxRank), "an array of ", to.size(), " dimensions, at most ", Shape::kMaxRank, " are known");
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
  std::vector<int64_t> axes = c.axes(1, {});
  const bool all = axes.empty();
  for (int64_t& axis : axes) axis = axis_in(axis, x.shape().rank());
  Shape shape;
  for (int i = 0; i < x.shape().rank(); ++i) {
    const bool named = all ? x.shape()[i] == 1 : std::find(axes.begin(), axes.end(), i) != axes.end();
    GALLEY_CHECK_INPUT(!named || x.shape()[i] == 1, "axis ", i, " of ", x.type(), " has not the size 1");
    if (!named) shape.push_back(x.shape()[i]);
  }
  c.set(reshape(x, shape));
}

void unsqueeze_node(Call& c) {
  const Value x = c.x(0);
  std::vector<int64_t> axes = c.axes(1, {});
  const int64_t rank = x.shape().rank() + static_cast<int64_t>(axes.size());
  GALLEY_CHECK_INPUT(!axes.empty() && rank <= Shape::kMaxRank, "it adds ", axes.size(), " dimensions to ", x.type());
  for (int64_t& axis : axes) axis = axis_in(axis, rank);
  std::sort(axes.begin(), axes.end());
  GALLEY_CHECK_INPUT(std::adjacent_find(axes.begin(), axes.end()) == axes.end(), "an axis is named twice");
  Shape shape;
  int from = 0;
  for (int64_t i = 0; i < rank; ++i) shape.push_back(std::binary_search(axes.begin(), axes.end(), i) ? 1 : x.shape()[from++]);
  c.set(reshape(x, shape));
}

void transpose_node(Call& c) {
  const Item& item = c.item(0);
  const int rank = item.value ? item.value.shape().rank() : item.constant.shape().rank();
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.rbegin(), order.rend(), 0);
  order = c.ints("perm", order);
  // A matrix of parameters turned round: products know it as theirs.
  if (item.is_weight && !item.transposed && rank == 2 && order == std::vector<int64_t>{1, 0} && !c.node.outputs.empty()) {
    Item turned = item;
    turned.value = {};
    turned.transposed = true;
    turned.name = c.node.inputs[0];
    return c.to.set(c.node.outputs[0], std::move(turned));
  }
  c.set(permute(c.x(0), order));
}

void concat_node(Call& c) {
  std::vector<Value> parts;
  for (size_t i = 0; i < c.inputs(); ++i) parts.push_back(c.x(i));
  GALLEY_CHECK_INPUT(!parts.empty(), "it joins nothing");
  ConcatAttrs attrs;
  attrs.axis = axis_in(c.integer("axis", 0), parts.front().shape().rank());
  c.set(concat(parts, attrs));
}

void split_node(Call& c) {
  const Value x = c.x(0);
  const int64_t axis = axis_in(c.integer("axis", 0), x.shape().rank()), size = x.shape()[static_cast<int>(axis)];
  const auto count = static_cast<int64_t>(c.node.outputs.size());
  c.integer("num_outputs", count);
  std::vector<int64_t> sizes = c.has(1) ? c.ints(1) : std::vector<int64_t>{};
  if (sizes.empty()) {
    const int64_t each = count == 0 ? 0 : (size + count - 1) / count;
    for (int64_t i = 0; i < count; ++i) sizes.push_back(std::clamp<int64_t>(size - i * each, 0, each));
  }
  GALLEY_CHECK_INPUT(static_cast<int64_t>(sizes.size()) == count, "it has ", sizes.size(), " sizes for ", count, " parts");
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    GALLEY_CHECK_INPUT(sizes[i] >= 0 && sizes[i] <= size - start, "its sizes are more than the ", size, " of axis ", axis);
    c.set(i, slice(x, axis, start, start + sizes[i]));
    start += sizes[i];
  }
  GALLEY_CHECK_INPUT(start == size, "its sizes add up to ", start, " of ", size);
}

void slice_node(Call& c) {
  Value x = c.x(0);
  const std::vector<int64_t> starts = c.ints(1), ends = c.ints(2);
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints(3);
  if (c.has(4)) steps = c.ints(4);
  GALLEY_CHECK_INPUT(ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size(), "starts, ends, axes and steps have different numbers");
  for (size_t i = 0; i < starts.size(); ++i) {
    GALLEY_CHECK_INPUT(steps[i] >= 1, "the step is ", steps[i], ", forward ones are known");
    SliceAttrs attrs;
    attrs.axis = axis_in(axes[i], x.shape().rank());
    const int64_t size = x.shape()[static_cast<int>(attrs.axis)];
    attrs.start = std::clamp(starts[i], -size, size);
    attrs.end = ends[i] < -size ? 0 : std::min(ends[i], size);
    attrs.step = std::min(steps[i], size + 1);
    if (ends[i] < -size) attrs.start = 0;
    x = slice(x, attrs);
  }
  c.set(x);
}

void pad_node(Call& c) {
  const Value x = c.x(0);
  const std::string mode = c.text("mode", "constant");
  if (mode != "constant") c.refuse(cat("mode ", mode, " is not known, constant is"));
  const std::vector<int64_t> pads = c.ints(1);
  const auto rank = static_cast<size_t>(x.shape().rank());
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints(3);
  GALLEY_CHECK_INPUT(pads.size() == 2 * axes.size(), "it has ", pads.size(), " pads for ", axes.size(), " axes");
  double value = 0;
  if (c.has(2)) {
    const std::optional<double> known = c.scalar(2);
    GALLEY_CHECK_INPUT(known.has_value(), "its value must be known before the model runs");
    value = *known;
  }
  PadAttrs attrs;
  attrs.padding.assign(2 * rank, 0);
  attrs.value = value;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axis_in(axes[i], x.shape().rank()));
    for (size_t side : {0u, 1u}) {
      const int64_t more = pads[side * axes.size() + i];
      GALLEY_CHECK_INPUT(more >= 0 && more <= (1 << 24), "a pad is ", more);
      attrs.padding[2 * axis + side] = more;
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

// ---- reductions

template <Value (*kReduce)(Value, const ReduceAttrs&)>
void reduce_node(Call& c) {
  const Value x = c.x(0);
  ReduceAttrs attrs;
  attrs.axes = c.axes(1, {});
  attrs.keepdim = c.integer("keepdims", 1) != 0;
  const bool nothing = c.integer("noop_with_empty_axes", 0) != 0;
  if (attrs.axes.empty() && nothing) return c.pass(0);
  c.set(kReduce(x, attrs));
}

void argmax_node(Call& c) {
  ArgmaxAttrs attrs;
  attrs.axis = c.integer("axis", 0);
  attrs.keepdim = c.integer("keepdims", 1) != 0;
  if (c.integer("select_last_index", 0) != 0) c.refuse("of equal values it takes the last (select_last_index=1)");
  c.set(argmax(c.x(0), attrs));
}

void topk_node(Call& c) {
  TopkAttrs attrs;
  const std::vector<int64_t> k = c.ints(1);
  GALLEY_CHECK_INPUT(k.size() == 1, "k is no number");
  attrs.k = k[0];
  attrs.axis = c.integer("axis", -1);
  c.integer("sorted", 1);
  if (c.integer("largest", 1) != 1) c.refuse("it takes the smallest (largest=0)");
  const TopK made = topk(c.x(0), attrs);
  c.set(0, made.values);
  c.set(1, made.indices);
}

template <Value (*kSoftmax)(Value, const SoftmaxAttrs&)>
void softmax_node(Call& c) {
  SoftmaxAttrs attrs;
  attrs.axis = c.integer("axis", -1);
  c.set(kSoftmax(c.x(0), attrs));
}

}  // namespace

MakeTable shape_rows() {
  return {{"Constant", constant},
          {"ConstantOfShape", constant_of_shape},
          {"Shape", shape_node},
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
          {"ReduceMean", reduce_node<mean>},
          {"ReduceSum", reduce_node<sum>},
          {"ReduceMax", reduce_node<amax>},
          {"ReduceMin", reduce_node<amin>},
          {"ArgMax", argmax_node},
          {"TopK", topk_node},
          {"Softmax", softmax_node<softmax>},
          {"LogSoftmax", softmax_node<log_softmax>}};
}

}  // namespace galley::onnx_import
