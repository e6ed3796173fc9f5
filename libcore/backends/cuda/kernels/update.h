#pragma once
// Optimizer steps in place, a pack of elements in a thread at once, of one parameter or of many in one launch. Memory traffic bounds them:
// they read all operands of a pack before they use the first.

#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

/// The elements of a call that threads of a block, or of all, share.
struct UpdateRange {
  int64_t begin, end, thread, threads;
};

/// Kingma, Ba 2014; decoupled: Loshchilov, Hutter 2017. 1 - beta^step is computed by expm1: 1 - 0.999 has only four digits in float.
struct AdamElement {
  float decay, keep, beta1, beta2, one_beta1, one_beta2, eps, share, by_root;
  bool decoupled;
  GALLEY_DEVICE explicit AdamElement(const UpdateCall& call) {
    const float lr = load_real(call.lr, 0, kF32);
    const double step = static_cast<double>(*call.step);
    decay = static_cast<float>(call.weight_decay);
    keep = 1.0f - lr * decay;
    beta1 = static_cast<float>(call.beta1);
    beta2 = static_cast<float>(call.beta2);
    one_beta1 = static_cast<float>(1 - call.beta1);
    one_beta2 = static_cast<float>(1 - call.beta2);
    eps = static_cast<float>(call.eps);
    share = lr / -expm1(static_cast<float>(step * call.log_beta1));
    by_root = 1.0f / sqrt(-expm1(static_cast<float>(step * call.log_beta2)));
    decoupled = call.decoupled != 0;
  }
  GALLEY_DEVICE void update(float& parameter, float grad, float& first, float& second) const {
    if (decoupled) {
      parameter *= keep;
    } else {
      grad += decay * parameter;
    }
    first = beta1 * first + one_beta1 * grad;
    second = beta2 * second + one_beta2 * grad * grad;
    parameter -= share * first / (sqrt(second) * by_root + eps);
  }
};

/// torch.optim.SGD: beta1 is the momentum, beta2 the dampening.
struct SgdElement {
  float lr, decay, momentum, share;
  bool first_step, nesterov, buffers;
  GALLEY_DEVICE explicit SgdElement(const UpdateCall& call) {
    lr = load_real(call.lr, 0, kF32);
    decay = static_cast<float>(call.weight_decay);
    momentum = static_cast<float>(call.beta1);
    share = static_cast<float>(1 - call.beta2);
    buffers = call.first != nullptr;
    first_step = buffers && *call.step == 1;
    nesterov = call.nesterov != 0;
  }
  GALLEY_DEVICE void update(float& parameter, float grad, float& buffer, float&) const {
    grad += decay * parameter;
    if (buffers) {
      buffer = first_step ? grad : momentum * buffer + share * grad;
      grad = nesterov ? grad + momentum * buffer : buffer;
    }
    parameter -= lr * grad;
  }
};

/// An average: lr is the share that it keeps.
struct EmaElement {
  float keep, take;
  GALLEY_DEVICE explicit EmaElement(const UpdateCall& call) {
    keep = load_real(call.lr, 0, kF32);
    take = 1.0f - keep;
  }
  GALLEY_DEVICE void update(float& average, float value, float&, float&) const { average = keep * average + take * value; }
};

/// States that are null are neither read nor written.
template <class E, Type kType, Type kGrad>
GALLEY_DEVICE void update_packs(const UpdateCall& call, const E& element, float scale, const UpdateRange& range, int64_t end) {
  for (int64_t i = range.begin + range.thread * kPack; i < end; i += range.threads * kPack) {
    const Packed<kGrad> of_grad = read_pack<kGrad>(call.grad, i);
    const Packed<kType> of_parameter = read_pack<kType>(call.parameter, i);
    Packed<kType> of_first = {}, of_second = {};
    if (call.first != nullptr) of_first = read_pack<kType>(call.first, i);
    if (call.second != nullptr) of_second = read_pack<kType>(call.second, i);
    float grad[kPack], parameter[kPack], first[kPack], second[kPack];
    unpack(of_grad, grad);
    unpack(of_parameter, parameter);
    unpack(of_first, first);
    unpack(of_second, second);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) element.update(parameter[j], grad[j] * scale, first[j], second[j]);
    write_pack(packed<kType>(parameter), call.parameter, i);
    if (call.first != nullptr) write_pack(packed<kType>(first), call.first, i);
    if (call.second != nullptr) write_pack(packed<kType>(second), call.second, i);
  }
}

template <class E>
GALLEY_DEVICE void update_elements(const UpdateCall& call, const UpdateRange& range) {
  if (call.gate != nullptr && *call.gate == 0) return;
  const E element(call);
  const float scale = call.grad_scale != nullptr ? load_real(call.grad_scale, 0, kF32) : 1.0f;
  const bool packs = has_packs(call.parameter) && has_packs(call.grad) && has_packs(call.first) && has_packs(call.second);
  const int64_t whole = packs ? range.begin + (range.end - range.begin) / kPack * kPack : range.begin;
  if (whole > range.begin) {
    with_type(call.type, [&]<Type kType>() {
      with_type(call.grad_type, [&]<Type kGrad>() { update_packs<E, kType, kGrad>(call, element, scale, range, whole); });
    });
  }
  for (int64_t i = whole + range.thread; i < range.end; i += range.threads) {
    float parameter = load_real(call.parameter, i, call.type), first = 0, second = 0;
    if (call.first != nullptr) first = load_real(call.first, i, call.type);
    if (call.second != nullptr) second = load_real(call.second, i, call.type);
    element.update(parameter, load_real(call.grad, i, call.grad_type) * scale, first, second);
    store_real(parameter, call.parameter, i, call.type);
    if (call.first != nullptr) store_real(first, call.first, i, call.type);
    if (call.second != nullptr) store_real(second, call.second, i, call.type);
  }
}

template <class E>
GALLEY_DEVICE void update_one(const UpdateCall& call) {
  update_elements<E>(call, {0, call.elements, first_element(), all_threads()});
}
/// A block has a part of a parameter, in multiples of packs.
template <class E>
GALLEY_DEVICE void update_part(const UpdatesCall& all) {
  const UpdatePart part = all.parts[blockIdx.x];
  const UpdateCall call = all.calls[part.call];
  const int64_t end = part.begin + kUpdatePart < call.elements ? part.begin + kUpdatePart : call.elements;
  update_elements<E>(call, {part.begin, end, static_cast<int64_t>(threadIdx.x), kThreads});
}

GALLEY_KERNEL(finite_gate_value, (const FiniteGateCall call)) {
  if (first_element() != 0) return;
  const double value = load<double>(call.value, 0, call.type);
  const bool stopped = *call.stopped != 0 || !(value - value == 0);
  *call.stopped_to = stopped ? 1 : 0;
  *call.gate = stopped ? 0 : 1;
}
GALLEY_KERNEL(adam_step, (const UpdateCall call)) { update_one<AdamElement>(call); }
GALLEY_KERNEL(sgd_step, (const UpdateCall call)) { update_one<SgdElement>(call); }
GALLEY_KERNEL(ema_step, (const UpdateCall call)) { update_one<EmaElement>(call); }
GALLEY_KERNEL(adam_steps, (const UpdatesCall all)) { update_part<AdamElement>(all); }
GALLEY_KERNEL(sgd_steps, (const UpdatesCall all)) { update_part<SgdElement>(all); }
GALLEY_KERNEL(ema_steps, (const UpdatesCall all)) { update_part<EmaElement>(all); }

}  // namespace galley::device
