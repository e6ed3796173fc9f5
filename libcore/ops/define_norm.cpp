// Definitions of norms and their backward operators.

#include <numeric>
#include <string>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

/// value * scale + shift. An absent scale is 1, an absent shift 0.
Value scaled(Value value, Value scale, Value shift) {
  if (scale) value = mul(value, scale);
  return shift ? add(value, shift) : value;
}
Value channels_of(Value vector, int rank) { return vector ? per_channel(vector, rank) : Value(); }

Value reciprocal_root(Value var, double eps) { return rsqrt(affine(var, 1, eps)); }

/// grad times the slope of an activation of batch norm. For relu, `argument` may be its output, because both have the same sign.
Value through(Activation activation, Value grad, Value argument) {
  switch (activation) {
    case Activation::kRelu: return relu_backward(grad, argument);
    case Activation::kRelu6: return relu6_backward(grad, argument);
    case Activation::kHardswish: return hardswish_backward(grad, argument);
    default: return grad;
  }
}

double share_of(int64_t count) { return 1 / static_cast<double>(count > 0 ? count : 1); }

/// Gradient of the input of y = gamma normal + beta, normal = (x - mean) rstd, for statistics over `axes` with `count` elements; d = gamma
/// grad.
Value input_gradient(Value d, Value normal, Value rstd, const std::vector<int64_t>& axes, int64_t count) {
  const Value mean_d = affine(sum_over(d, axes), share_of(count)), mean_dn = affine(sum_over(mul(d, normal), axes), share_of(count));
  return mul(rstd, sub(sub(d, mean_d), mul(normal, mean_dn)));
}

Value sum_of_ranks(Value own, const std::string& name) { return all_reduce_wait(all_reduce_start(own, name), name); }

/// The mean over all ranks, per channel, of values that have these sums over this rank's elements.
Value mean_of_ranks(Value sums, Value x, const std::string& name) {
  TensorType count;
  count.dtype = sums.dtype();
  const auto elements = static_cast<double>(x.channels() == 0 ? 0 : x.type().elements() / x.channels());
  return div(sum_of_ranks(sums, name), sum_of_ranks(full(x.graph(), count, elements), name));
}

/// Mean and variance of each channel over the elements of all ranks, in two passes.
Moments moments_of_ranks(Value x, const std::string& name) {
  const std::vector<int64_t> axes = all_but_channels(x.shape().rank());
  const Value mean = mean_of_ranks(sum_over(x, axes), x, name);
  return {mean, mean_of_ranks(sum_over(square(sub(x, mean)), axes), x, name)};
}

/// As input_gradient, with the elements of all ranks.
Value input_gradient_of_ranks(Value d, Value normal, Value rstd, const std::string& name) {
  const std::vector<int64_t> axes = all_but_channels(d.shape().rank());
  const Value mean_d = mean_of_ranks(sum_over(d, axes), d, name), mean_dn = mean_of_ranks(sum_over(mul(d, normal), axes), d, name);
  return mul(rstd, sub(sub(d, mean_d), mul(normal, mean_dn)));
}

std::vector<int64_t> range(int64_t from, int64_t to) {
  std::vector<int64_t> axes(static_cast<size_t>(to - from));
  std::iota(axes.begin(), axes.end(), from);
  return axes;
}

}  // namespace

void batch_norm(Expansion& e) {
  const auto& a = e.attrs<BatchNormAttrs>();
  const Value x = e.in(0);
  const int rank = x.shape().rank();
  const Moments m = a.sync.empty() ? moments(x, all_but_channels(rank)) : moments_of_ranks(x, a.sync);
  Value y = scaled(mul(sub(x, m.mean), reciprocal_root(m.var, a.eps)), channels_of(e.in(1), rank), channels_of(e.in(2), rank));
  if (e.has(3)) y = add(y, e.in(3));
  e.set(0, activated(a.activation, y));
  e.set(1, reshape(m.mean, e.output_type(1).shape));
  e.set(2, reshape(m.var, e.output_type(2).shape));
}

void batch_norm_backward(Expansion& e) {
  const auto& a = e.attrs<BatchNormBackwardAttrs>();
  const Value x = e.in(1);
  const int rank = x.shape().rank();
  const std::vector<int64_t> axes = all_but_channels(rank);
  const Value gamma = channels_of(e.in(4), rank), rstd = reciprocal_root(per_channel(e.in(3), rank), a.eps);
  const Value normal = mul(sub(x, per_channel(e.in(2), rank)), rstd);
  Value grad = e.in(0);
  grad = through(a.activation, grad, e.has(6) ? e.in(6) : scaled(normal, gamma, channels_of(e.in(5), rank)));
  const int64_t count = x.channels() == 0 ? 0 : x.type().elements() / x.channels();
  const Value d = gamma ? mul(gamma, grad) : grad;
  e.set(0, a.sync.empty() ? input_gradient(d, normal, rstd, axes, count) : input_gradient_of_ranks(d, normal, rstd, a.sync));
  e.set(1, sum(mul(grad, normal), axes));
  e.set(2, sum(grad, axes));
  if (a.residual) e.set(3, grad);
}

void batch_norm_inference(Expansion& e) {
  const auto& a = e.attrs<BatchNormInferenceAttrs>();
  const int rank = e.in(0).shape().rank();
  const Value normal = mul(sub(e.in(0), per_channel(e.in(3), rank)), reciprocal_root(per_channel(e.in(4), rank), a.eps));
  e.set(0, activated(a.activation, scaled(normal, channels_of(e.in(1), rank), channels_of(e.in(2), rank))));
}

void batch_norm_update(Expansion& e) {
  const auto& a = e.attrs<BatchNormUpdateAttrs>();
  // The unbiased variance of a single value is undefined (PyTorch rejects such a batch). The biased variance, 0, is used instead.
  const double correction = a.count > 1 ? static_cast<double>(a.count) / static_cast<double>(a.count - 1) : 1;
  const Value mean = add(affine(e.in(0), 1 - a.momentum), affine(e.in(2), a.momentum));
  const Value var = add(affine(e.in(1), 1 - a.momentum), affine(e.in(3), a.momentum * correction));
  const Value count = e.has(4) ? add(e.in(4), full(e.graph(), e.type(4), 1)) : Value();
  e.assign(0, 0, mean);
  e.assign(1, 1, var);
  if (count) e.assign(2, 4, count);
}

void layer_norm(Expansion& e) {
  const auto& a = e.attrs<LayerNormAttrs>();
  const Value x = e.in(0);
  const int rank = x.shape().rank();
  const Moments m = moments(x, range(rank - a.dims, rank));
  const Value rstd = reciprocal_root(m.var, a.eps);
  e.set(0, scaled(mul(sub(x, m.mean), rstd), e.in(1), e.in(2)));
  e.set(1, reshape(m.mean, e.output_type(1).shape));
  e.set(2, reshape(rstd, e.output_type(2).shape));
}

void layer_norm_backward(Expansion& e) {
  const int64_t dims = e.attrs<LayerNormBackwardAttrs>().dims;
  const Value grad = e.in(0), x = e.in(1), gamma = e.in(4);
  const int rank = x.shape().rank();
  const std::vector<int64_t> leading = range(0, rank - dims), axes = range(rank - dims, rank);
  Shape kept = x.shape();
  for (int64_t axis : axes) kept[static_cast<int>(axis)] = 1;
  const Value mean = reshape(e.in(2), kept), rstd = reshape(e.in(3), kept), normal = mul(sub(x, mean), rstd);
  e.set(0, input_gradient(gamma ? mul(gamma, grad) : grad, normal, rstd, axes, e.output_type(1).elements()));
  e.set(1, sum_over(mul(grad, normal), leading, false));
  e.set(2, sum_over(grad, leading, false));
}

/// [N,C,..] as [N,groups,width]: the elements of a sample's group are adjacent.
Shape grouped(const Shape& x, int64_t groups) {
  int64_t width = x[1] / groups;
  for (int d = 2; d < x.rank(); ++d) width *= x[d];
  return {x[0], groups, width};
}

/// Statistics and gradients of the pixels inside the extents, input i.
struct Inside {
  Inside(Expansion& e, size_t i, const Shape& x, int64_t groups)
      : extents(e.in(i)),
        parts(grouped(x, groups)),
        shape(x),
        share(affine(reshape(inside_share(extents, e.compute()), {x[0], 1, 1}), share_of(x[1] / groups))) {}
  Value zero(Value x) const { return reshape(fill_outside(reshape(x, shape), extents), parts); }
  Value mean(Value x) const { return mul(sum(zero(x), {2}, true), share); }
  Value extents;
  Shape parts, shape;
  Value share;  // [N,1,1]: 1 / elements of a group inside
};

void group_norm(Expansion& e) {
  const auto& a = e.attrs<GroupNormAttrs>();
  const Shape shape = e.in(0).shape();
  const Value x = reshape(e.in(0), grouped(shape, a.groups));
  Moments m;
  if (e.has(3)) {
    const Inside inside(e, 3, shape, a.groups);
    m.mean = inside.mean(x);
    m.var = inside.mean(square(sub(x, m.mean)));
  } else {
    m = moments(x, {2});
  }
  const Value rstd = reciprocal_root(m.var, a.eps), normal = reshape(mul(sub(x, m.mean), rstd), shape);
  e.set(0, scaled(normal, channels_of(e.in(1), shape.rank()), channels_of(e.in(2), shape.rank())));
  e.set(1, reshape(m.mean, e.output_type(1).shape));
  e.set(2, reshape(rstd, e.output_type(2).shape));
}

void group_norm_backward(Expansion& e) {
  const int64_t groups = e.attrs<GroupNormBackwardAttrs>().groups;
  const Shape shape = e.in(1).shape(), parts = grouped(shape, groups), one{shape[0], groups, 1};
  const int rank = shape.rank();
  const Value grad = e.in(0), gamma = channels_of(e.in(4), rank), rstd = reshape(e.in(3), one);
  const Value normal = mul(sub(reshape(e.in(1), parts), reshape(e.in(2), one)), rstd);
  const Value d = reshape(gamma ? mul(gamma, grad) : grad, parts);
  if (e.has(5)) {
    const Inside inside(e, 5, shape, groups);
    // All results depend on the statistics, which depend on the pixels inside.
    const Value through = add(sum(d, {2}, true), mul(normal, sum(mul(d, normal), {2}, true)));
    e.set(0, reshape(mul(rstd, sub(d, inside.zero(mul(through, inside.share)))), shape));
  } else {
    e.set(0, reshape(input_gradient(d, normal, rstd, {2}, parts[2]), shape));
  }
  e.set(1, sum(mul(grad, reshape(normal, shape)), all_but_channels(rank)));
  e.set(2, sum(grad, all_but_channels(rank)));
}

}  // namespace galley::definition
