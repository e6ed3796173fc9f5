#pragma once
// Optimizer steps in place, an element in a thread. Memory traffic bounds them.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

GALLEY_DEVICE float scaled_grad(const UpdateCall& call, int64_t i) {
  const float grad = load<float>(call.grad, i, call.grad_type);
  return call.grad_scale != nullptr ? grad * load<float>(call.grad_scale, 0, kF32) : grad;
}

/// Kingma, Ba 2014; decoupled: Loshchilov, Hutter 2017. 1 - beta^step is computed in double: 1 - 0.999 has only four digits in float.
GALLEY_KERNEL(adam_step, (const UpdateCall call)) {
  if (call.gate != nullptr && *call.gate == 0) return;
  const float lr = load<float>(call.lr, 0, kF32), decay = static_cast<float>(call.weight_decay);
  const double step = static_cast<double>(*call.step);
  const float first_share = lr / static_cast<float>(1 - pow(call.beta1, step)), root = sqrt(static_cast<float>(1 - pow(call.beta2, step)));
  const float beta1 = static_cast<float>(call.beta1), beta2 = static_cast<float>(call.beta2), eps = static_cast<float>(call.eps);
  const float one_beta1 = static_cast<float>(1 - call.beta1), one_beta2 = static_cast<float>(1 - call.beta2);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    float parameter = load<float>(call.parameter, i, call.type), grad = scaled_grad(call, i);
    if (call.decoupled != 0) {
      parameter *= 1.0f - lr * decay;
    } else {
      grad += decay * parameter;
    }
    const float first = beta1 * load<float>(call.first, i, call.type) + one_beta1 * grad;
    const float second = beta2 * load<float>(call.second, i, call.type) + one_beta2 * grad * grad;
    store(parameter - first_share * first / (sqrt(second) / root + eps), call.parameter, i, call.type);
    store(first, call.first, i, call.type);
    store(second, call.second, i, call.type);
  }
}

/// torch.optim.SGD: beta1 is the momentum, beta2 the dampening.
GALLEY_KERNEL(sgd_step, (const UpdateCall call)) {
  if (call.gate != nullptr && *call.gate == 0) return;
  const float lr = load<float>(call.lr, 0, kF32), decay = static_cast<float>(call.weight_decay);
  const float momentum = static_cast<float>(call.beta1), share = static_cast<float>(1 - call.beta2);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const float parameter = load<float>(call.parameter, i, call.type);
    float grad = scaled_grad(call, i) + decay * parameter;
    if (call.first != nullptr) {
      const float buffer = *call.step == 1 ? grad : momentum * load<float>(call.first, i, call.type) + share * grad;
      store(buffer, call.first, i, call.type);
      grad = call.nesterov != 0 ? grad + momentum * buffer : buffer;
    }
    store(parameter - lr * grad, call.parameter, i, call.type);
  }
}

}  // namespace galley::device
