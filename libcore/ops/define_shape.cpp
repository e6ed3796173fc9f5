// Definitions of masks, look-ups, transposes of pooling, and reductions.

#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/index.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/random.h"
#include "libcore/ops/random_mask.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

TensorType typed(DType dtype, const Shape& shape = {}) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

/// x / (1-p) where the random word of an element is large enough to keep it, else 0. The draw's shape broadcasts to x's.
Value masked(Expansion& e, double p, RandomBitsAttrs draw, const Shape& broadcast) {
  // The upper 24 bits of a word are the uniform number (base/philox.h). They are compared as integers, so that the mask is the same for
  // every floating-point type.
  const double least = std::ceil(std::ldexp(p, 24)) * 256;
  const Value bits = reshape(random_bits(e.in(1), draw), broadcast);
  return where(less(bits, full(e.graph(), typed(DType::kI64), least)), e.constant(0), affine(e.in(0), mask_scale(p)));
}

/// [N,1,..], or [1,1,..] for a whole batch.
Shape one_per_sample(int64_t samples, int rank) {
  Shape shape{samples};
  for (int d = 1; d < rank; ++d) shape.push_back(1);
  return shape;
}

/// Converts indices of rows [..] to indices of elements of a table with `width` columns: [count,width].
Value row_indices(Value index, int64_t width) {
  return broadcast_to(reshape(index, {index.type().elements(), 1}), Shape{index.type().elements(), width});
}

/// Adds the gradients of pooled pixels [N,C,H',W'] to the elements of the planes at the flat indices.
Value to_planes(Value grad, Value index, const Shape& result) {
  const Shape pooled = grad.shape(), planes{pooled[0] * pooled[1], pooled[2] * pooled[3]};
  return reshape(scatter_add(reshape(grad, planes), reshape(index, planes), 1, result[2] * result[3]), result);
}

}  // namespace

void dropout(Expansion& e) {
  const auto& a = e.attrs<DropoutAttrs>();
  const Shape shape = e.in(0).shape();
  RandomBitsAttrs draw;
  draw.shape.assign(shape.begin(), shape.end());
  draw.stream = a.stream;
  e.set(0, masked(e, a.p, draw, shape));
}

void stochastic_depth(Expansion& e) {
  const auto& a = e.attrs<StochasticDepthAttrs>();
  const Shape shape = e.in(0).shape();
  RandomBitsAttrs draw;
  draw.whole_batch = a.mode == StochasticDepthMode::kBatch;
  draw.shape = {draw.whole_batch ? 1 : shape[0]};
  draw.stream = a.stream;
  e.set(0, masked(e, a.p, draw, one_per_sample(draw.shape[0], shape.rank())));
}

void embedding(Expansion& e) {
  const Value rows = gather(e.in(0), row_indices(e.in(1), e.in(0).shape()[1]), 0);
  e.set(0, reshape(rows, e.output_type().shape));
}

void embedding_backward(Expansion& e) {
  const Value index = row_indices(e.in(1), e.in(0).shape()[-1]);
  e.set(0, scatter_add(reshape(e.in(0), index.shape()), index, 0, e.output_type().shape[0]));
}

void max_pool2d_backward(Expansion& e) {
  const auto& a = e.attrs<MaxPool2dBackwardAttrs>();
  const auto kernel = pair(a.kernel_size), stride = pair(a.stride.empty() ? a.kernel_size : a.stride), padding = pair(a.padding),
             dilation = pair(a.dilation);
  const Value grad = e.in(0), tap = cast(e.in(1), DType::kI64);
  const auto whole = [&](int64_t value) { return full(e.graph(), typed(DType::kI64), static_cast<double>(value)); };
  // Row and column of the tap, whole numbers below 256. The first element of the window is added later.
  const Value tap_row =
      cast(affine(cast(tap, DType::kF64), 1 / static_cast<double>(kernel[1]), 0.5 / static_cast<double>(kernel[1])), DType::kI64);
  const Value tap_column = sub(tap, mul(tap_row, whole(kernel[1])));
  const auto cell = [&](int axis, Value taps) {
    const auto i = static_cast<size_t>(axis - 2);
    Shape line{1, 1, 1, 1};
    line[axis] = grad.shape()[axis];
    return add(mul(iota(e.graph(), DType::kI64, line, axis), whole(stride[i])), add(mul(taps, whole(dilation[i])), whole(-padding[i])));
  };
  const Shape result = e.output_type().shape;
  const Value row = cell(2, tap_row), column = cell(3, tap_column);
  e.set(0, to_planes(grad, add(mul(row, whole(result[3])), column), result));
}

void adaptive_max_pool2d_backward(Expansion& e) { e.set(0, to_planes(e.in(0), e.in(1), e.output_type().shape)); }

void channel_shuffle(Expansion& e) {
  // Keeps the dtype, because integers may be shuffled too.
  const Value x = e.in(0);
  const Shape shape = x.shape();
  const int64_t groups = e.attrs<ChannelShuffleAttrs>().groups, part = shape[1] / groups;
  int64_t pixels = 1;
  for (int d = 2; d < shape.rank(); ++d) pixels *= shape[d];
  e.set(0, reshape(permute(reshape(x, {shape[0], groups, part, pixels}), {0, 2, 1, 3}), shape));
}

void mean(Expansion& e) {
  const Value total = sum(e.in(0), e.attrs<ReduceAttrs>());
  const double count = static_cast<double>(e.in(0).type().elements()) / static_cast<double>(total.type().elements());
  e.set(0, div(total, e.constant(total.type().elements() == 0 ? 1 : count)));
}

void argmax(Expansion& e) {
  TopkAttrs attrs;
  attrs.axis = e.attrs<ArgmaxAttrs>().axis;
  e.set(0, reshape(topk(e.in(0), attrs).indices, e.output_type().shape));
}

void sum_squares(Expansion& e) {
  Value total;
  for (size_t i = 0; i < e.input_count(); ++i) {
    const Value part = sum(square(e.in(i)));
    total = total ? add(total, part) : part;
  }
  e.set(0, total);
}

/// Sums x over the dimensions in which `shape` was broadcast.
Value summed_to(Value x, const Shape& shape) {
  const int new_dims = x.shape().rank() - shape.rank();
  std::vector<int64_t> axes;
  for (int d = 0; d < x.shape().rank(); ++d) {
    if (d < new_dims || shape[d - new_dims] != x.shape()[d]) axes.push_back(d);
  }
  return reshape(sum_over(x, axes), shape);
}

void sum_to(Expansion& e) { e.set(0, summed_to(e.in(0), e.output_type().shape)); }

}  // namespace galley::definition
