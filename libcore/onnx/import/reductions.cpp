// Imports reductions, softmax and related operators, and cumulative sums.

#include <algorithm>
#include <limits>
#include <numeric>

#include "libcore/onnx/import/import.h"
#include "libcore/onnx/import/indices.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kLongestSum = int64_t{1} << 16;  // limit of elements of a cumulative sum

using Reduce = Value (*)(Value, const ReduceAttrs&);

/// The attributes of the node; `nothing` is set if it has no axes and noop_with_empty_axes.
ReduceAttrs reduce_attrs(Call& c, bool& nothing) {
  ReduceAttrs attrs;
  attrs.axes = c.axes(1, {});
  attrs.keepdim = c.integer("keepdims", 1) != 0;
  nothing = c.integer("noop_with_empty_axes", 0) != 0 && attrs.axes.empty();
  return attrs;
}

template <Value (*kReduce)(Value, const ReduceAttrs&)>
void reduce_node(Call& c) {
  bool nothing = false;
  const ReduceAttrs attrs = reduce_attrs(c, nothing);
  if (nothing) return c.pass(0);
  c.set(kReduce(c.x(0), attrs));
}

Value sum_of_squares(Value x, const ReduceAttrs& attrs) { return sum(square(x), attrs); }
Value l1(Value x, const ReduceAttrs& attrs) { return sum(abs(x), attrs); }
Value l2(Value x, const ReduceAttrs& attrs) { return sqrt(sum(square(x), attrs)); }
Value log_sum(Value x, const ReduceAttrs& attrs) { return log(sum(x, attrs)); }
Value log_sum_exp(Value x, const ReduceAttrs& attrs) {
  ReduceAttrs kept = attrs;
  kept.keepdim = true;
  const Value largest = clamp(amax(x, kept), std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  const Value result = add(log(sum(exp(sub(x, largest)), kept)), largest);
  return attrs.keepdim ? result : reshape(result, sum(x, attrs).shape());
}
/// Product along each axis by repeatedly multiplying the two halves.
Value product_of_elements(Value x, const ReduceAttrs& attrs) {
  const Shape shape = sum(x, attrs).shape();
  std::vector<int64_t> axes = attrs.axes;
  for (int axis = 0; attrs.axes.empty() && axis < x.shape().rank(); ++axis) axes.push_back(axis);
  for (const int64_t named : axes) {
    const int axis = axis_in(named, x.shape().rank());
    GALLEY_CHECK_INPUT(x.shape()[axis] >= 1, "it reduces an empty axis: ", x.type());
    for (int64_t size = x.shape()[axis]; size > 1; size = x.shape()[axis]) {
      const int64_t half = size / 2;
      const Value pairs = mul(slice(x, axis, 0, half), slice(x, axis, half, 2 * half));
      x = size % 2 == 0 ? pairs : concat({pairs, slice(x, axis, size - 1, size)}, axis);
    }
  }
  return reshape(x, shape);
}

/// A reduction of a function of each element; with noop_with_empty_axes only the function would remain.
template <Value (*kReduce)(Value, const ReduceAttrs&)>
void reduce_function(Call& c) {
  bool nothing = false;
  const ReduceAttrs attrs = reduce_attrs(c, nothing);
  if (nothing) c.refuse("noop_with_empty_axes=1 without axes is not supported");
  c.set(kReduce(c.x(0), attrs));
}

/// -x; unsigned numbers are converted to i32 first.
Value negated(Value x) { return neg(x.dtype() == DType::kU8 ? cast(x, DType::kI32) : x); }

template <bool kSmallest>
void extreme_index(Call& c) {
  Value x = c.x(0);
  const int axis = axis_in(c.integer("axis", 0), x.shape().rank());
  ArgmaxAttrs attrs;
  attrs.axis = axis;
  attrs.keepdim = c.integer("keepdims", 1) != 0;
  const bool last = c.integer("select_last_index", 0) != 0;
  if (kSmallest) x = negated(x);
  if (!last) return c.set(argmax(x, attrs));
  const int64_t size = x.shape()[axis];
  const Value index = argmax(reversed(c, x, axis), attrs);
  c.set(sub(c.scalar_value(DType::kI64, static_cast<double>(size - 1)), index));
}

void topk_node(Call& c) {
  TopkAttrs attrs;
  if (c.has(1)) {
    const std::vector<int64_t> k = c.ints(1);
    GALLEY_CHECK_INPUT(k.size() == 1, "k must be a single number");
    attrs.k = k[0];
  } else {
    attrs.k = c.integer("k", 1);  // before opset 10
  }
  attrs.axis = c.integer("axis", -1);
  c.integer("sorted", 1);
  const bool largest = c.integer("largest", 1) != 0;
  const Value x = c.x(0);
  const TopK made = topk(largest ? x : negated(x), attrs);
  c.set(0, largest ? made.values : cast(neg(made.values), x.dtype()));
  c.set(1, made.indices);
}

using Softmax = Value (*)(Value, const SoftmaxAttrs&);
Value hardmax(Value x, const SoftmaxAttrs& softmax) {
  ArgmaxAttrs attrs;
  attrs.axis = softmax.axis;
  attrs.keepdim = true;
  const int axis = axis_in(softmax.axis, x.shape().rank());
  Shape shape;
  for (int i = 0; i < x.shape().rank(); ++i) shape.push_back(i == axis ? x.shape()[i] : 1);
  return cast(equal(argmax(x, attrs), iota(x.graph(), DType::kI64, shape, axis)), x.dtype());
}

/// Before opset 13, all axes from `axis` on are one.
template <Value (*kSoftmax)(Value, const SoftmaxAttrs&)>
void softmax_node(Call& c) {
  const Value x = c.x(0);
  const int rank = x.shape().rank();
  SoftmaxAttrs attrs;
  attrs.axis = c.integer("axis", c.opset() < 13 ? 1 : -1);
  if (c.opset() >= 13) return c.set(kSoftmax(x, attrs));
  const int64_t axis = attrs.axis;
  GALLEY_CHECK_INPUT(axis >= -rank && axis <= rank, "axis ", axis, " is out of range for ", x.type());
  const int first = static_cast<int>(axis < 0 ? axis + rank : axis);
  if (first == rank - 1) return c.set(kSoftmax(x, attrs));
  int64_t rows = 1, columns = 1;
  for (int i = 0; i < rank; ++i) (i < first ? rows : columns) *= x.shape()[i];
  attrs.axis = 1;
  c.set(reshape(kSoftmax(reshape(x, {rows, columns}), attrs), x.shape()));
}

/// x shifted by `by` elements along an axis, towards the end or the start, filled with zeros.
Value shifted(Value x, int axis, int64_t by, bool to_end) {
  const int64_t size = x.shape()[axis];
  std::vector<int64_t> padding(static_cast<size_t>(2 * x.shape().rank()), 0);
  padding[static_cast<size_t>(2 * axis + (to_end ? 0 : 1))] = by;
  return pad(to_end ? slice(x, axis, 0, size - by) : slice(x, axis, by, size), padding);
}

/// Parallel prefix sum in log2(n) steps (Hillis and Steele 1986).
void cumulative_sum(Call& c) {
  Value x = c.x(0);
  const std::vector<int64_t> named = c.ints(1);
  GALLEY_CHECK_INPUT(named.size() == 1, "its axis must be a single number");
  const int axis = axis_in(named[0], x.shape().rank());
  const bool exclusive = c.integer("exclusive", 0) != 0, reverse = c.integer("reverse", 0) != 0;
  const int64_t size = x.shape()[axis];
  GALLEY_CHECK_INPUT(size >= 1 && size <= kLongestSum, "its axis has ", size, " elements, but must have 1 to ", kLongestSum);
  if (exclusive) x = shifted(x, axis, 1, !reverse);
  for (int64_t by = 1; by < size; by *= 2) x = add(x, shifted(x, axis, by, !reverse));
  c.set(x);
}

}  // namespace

MakeTable reduce_rows() {
  return {{"ReduceMean", reduce_node<mean>},
          {"ReduceSum", reduce_node<sum>},
          {"ReduceMax", reduce_node<amax>},
          {"ReduceMin", reduce_node<amin>},
          {"ReduceProd", reduce_node<product_of_elements>},
          {"ReduceL1", reduce_function<l1>},
          {"ReduceL2", reduce_function<l2>},
          {"ReduceLogSum", reduce_function<log_sum>},
          {"ReduceLogSumExp", reduce_function<log_sum_exp>},
          {"ReduceSumSquare", reduce_function<sum_of_squares>},
          {"ArgMax", extreme_index<false>},
          {"ArgMin", extreme_index<true>},
          {"TopK", topk_node},
          {"Softmax", softmax_node<softmax>},
          {"LogSoftmax", softmax_node<log_softmax>},
          {"Hardmax", softmax_node<hardmax>},
          {"CumSum", cumulative_sum}};
}

}  // namespace galley::onnx_import
