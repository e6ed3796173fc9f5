#pragma once
// Activations that other operators apply to their results.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

/// The function at that position of Activation (ops/attrs.h).
GALLEY_DEVICE float activated(int activation, float x) {
  switch (activation) {
    case 1: return Relu::value(x);
    case 2: return Relu6::value(x);
    case 3: return Hardswish::value(x);
    case 4: return Hardsigmoid::value(x);
    case 5: return Sigmoid::value(x);
    case 6: return Silu::value(x);
    case 7: return Gelu::value(x);
    case 8: return Tanh::value(x);
    default: return x;
  }
}

template <class F>
GALLEY_DEVICE float grad_through(float grad, float x) {
  const float y = F::value(x);
  if constexpr (requires { F::backward(grad, x, y); }) {
    return F::backward(grad, x, y);
  } else {
    return grad * F::slope(x, y);
  }
}
/// The gradient of x where `grad` is that of its activation.
GALLEY_DEVICE float activation_grad(int activation, float grad, float x) {
  switch (activation) {
    case 1: return grad_through<Relu>(grad, x);
    case 2: return grad_through<Relu6>(grad, x);
    case 3: return grad_through<Hardswish>(grad, x);
    case 4: return grad_through<Hardsigmoid>(grad, x);
    case 5: return grad_through<Sigmoid>(grad, x);
    case 6: return grad_through<Silu>(grad, x);
    case 7: return grad_through<Gelu>(grad, x);
    case 8: return grad_through<Tanh>(grad, x);
    default: return grad;
  }
}

}  // namespace galley::device
