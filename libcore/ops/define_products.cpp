// Definitions of convolutions and linear layers with bias, residual and activation, and functions that several definitions share.

#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::definition {

Value activated(Activation activation, Value x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return relu(x);
    case Activation::kRelu6: return relu6(x);
    case Activation::kHardswish: return hardswish(x);
    case Activation::kHardsigmoid: return hardsigmoid(x);
    case Activation::kSigmoid: return sigmoid(x);
    case Activation::kSilu: return silu(x);
    case Activation::kGelu: return gelu(x);
    case Activation::kTanh: return tanh(x);
  }
  GALLEY_ASSERT(false);
}

Value per_channel(Value vector, int rank) {
  Shape shape;
  for (int d = 0; d < rank; ++d) shape.push_back(d == 1 ? vector.shape()[0] : 1);
  return reshape(vector, shape);
}

std::vector<int64_t> all_but_channels(int rank) {
  std::vector<int64_t> axes;
  for (int d = 0; d < rank; ++d) {
    if (d != 1) axes.push_back(d);
  }
  return axes;
}

Value sum_over(Value x, const std::vector<int64_t>& axes, bool keepdim) { return axes.empty() ? x : sum(x, axes, keepdim); }

Moments moments(Value x, const std::vector<int64_t>& axes) {
  int64_t count = 1;
  for (int64_t axis : axes) count *= x.shape()[static_cast<int>(axis)];
  const double share = 1 / static_cast<double>(count > 0 ? count : 1);
  const Value mean = affine(sum_over(x, axes), share);
  return {mean, affine(sum_over(square(sub(x, mean)), axes), share)};
}

void conv2d(Expansion& e) {
  Conv2dAttrs window = e.attrs<Conv2dAttrs>();
  const Activation activation = std::exchange(window.activation, Activation::kNone);
  if (!e.has(2) && !e.has(3) && activation == Activation::kNone) return e.keep();
  Value y = galley::conv2d(e.in(0), e.in(1), {}, window);
  if (e.has(2)) y = add(y, per_channel(e.in(2), 4));
  if (e.has(3)) y = add(y, e.in(3));
  e.set(0, activated(activation, y));
}

void conv2d_backward_data(Expansion& e) {
  if (!e.has(2)) return e.keep();
  e.set(0, add(galley::conv2d_backward_data(e.in(0), e.in(1), e.attrs<Conv2dBackwardDataAttrs>()), e.in(2)));
}

void linear(Expansion& e) {
  const Value x = e.in(0);
  // A single feature vector is treated as one row.
  Value y = matmul(x.shape().rank() == 1 ? unsqueeze(x, 0) : x, e.in(1), {false, true});
  if (e.has(2)) y = add(y, e.in(2));
  e.set(0, reshape(activated(e.attrs<LinearAttrs>().activation, y), e.output_type().shape));
}

}  // namespace galley::definition
