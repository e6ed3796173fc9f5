#pragma once
// Optimizer steps in place, an element in a thread, of one parameter or of many in one launch. Memory traffic bounds them.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

GALLEY_DEVICE float scaled_grad(const UpdateCall& call, int64_t i) {
  const float grad = load<float>(call.grad, i, call.grad_type);
  return call.grad_scale != nullptr ? grad * load<float>(call.grad_scale, 0, kF32) : grad;
}

/// Kingma, Ba 2014; decoupled: Loshchilov, Hutter 2017. 1 - beta^step is computed in double: 1 - 0.999 has only four digits in float.
GALLEY_DEVICE void adam_elements(const UpdateCall& call, int64_t first_one, int64_t end, int64_t distance) {
  if (call.gate != nullptr && *call.gate == 0) return;
  const float lr = load<float>(call.lr, 0, kF32), decay = static_cast<float>(call.weight_decay);
  const double step = static_cast<double>(*call.step);
  const float first_share = lr / static_cast<float>(1 - pow(call.beta1, step)), root = sqrt(static_cast<float>(1 - pow(call.beta2, step)));
  const float beta1 = static_cast<float>(call.beta1), beta2 = static_cast<float>(call.beta2), eps = static_cast<float>(call.eps);
  const float one_beta1 = static_cast<float>(1 - call.beta1), one_beta2 = static_cast<float>(1 - call.beta2);
  for (int64_t i = first_one; i < end; i += distance) {
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
GALLEY_DEVICE void sgd_elements(const UpdateCall& call, int64_t first_one, int64_t end, int64_t distance) {
  if (call.gate != nullptr && *call.gate == 0) return;
  const float lr = load<float>(call.lr, 0, kF32), decay = static_cast<float>(call.weight_decay);
  const float momentum = static_cast<float>(call.beta1), share = static_cast<float>(1 - call.beta2);
  for (int64_t i = first_one; i < end; i += distance) {
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

/// Parts of many parameters.
template <class F>
GALLEY_DEVICE void each_update_part(const UpdatesCall& all, const F& elements) {
  for (int64_t p = blockIdx.x; p < all.count; p += gridDim.x) {
    const UpdatePart part = all.parts[p];
    const UpdateCall call = all.calls[part.call];
    elements(call, part.begin + threadIdx.x, part.begin + kUpdatePart < call.elements ? part.begin + kUpdatePart : call.elements);
  }
}

GALLEY_KERNEL(finite_gate_value, (const FiniteGateCall call)) {
  if (first_element() != 0) return;
  const double value = load<double>(call.value, 0, call.type);
  const bool stopped = *call.stopped != 0 || !(value - value == 0);
  *call.stopped_to = stopped ? 1 : 0;
  *call.gate = stopped ? 0 : 1;
}
GALLEY_KERNEL(adam_step, (const UpdateCall call)) { adam_elements(call, first_element(), call.elements, all_threads()); }
GALLEY_KERNEL(sgd_step, (const UpdateCall call)) { sgd_elements(call, first_element(), call.elements, all_threads()); }
GALLEY_KERNEL(adam_steps, (const UpdatesCall all)) {
  each_update_part(all, [](const UpdateCall& call, int64_t first, int64_t end) { adam_elements(call, first, end, kThreads); });
}
GALLEY_KERNEL(sgd_steps, (const UpdatesCall all)) {
  each_update_part(all, [](const UpdateCall& call, int64_t first, int64_t end) { sgd_elements(call, first, end, kThreads); });
}

}  // namespace galley::device
