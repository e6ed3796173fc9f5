#include "libcore/ops/update.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// The scalar inputs of an optimizer's step, and the gradient as it enters (scaled, decay added).
struct Step {
  double lr, step, scale;
  Step(const RefCall& call, size_t scale_input)
      : lr(call.in(2)[0]), step(call.in(3)[0]), scale(call.has(scale_input) ? call.in(scale_input)[0] : 1) {}
};

void sgd_update_ref(RefCall& call) {
  const auto& attrs = call.attrs<SgdUpdateAttrs>();
  const Step at(call, 5);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double param = call.in(0)[i];
    double grad = call.in(1)[i] * at.scale + attrs.weight_decay * param;
    if (attrs.momentum != 0) {
      double& buffer = call.out(1)[i];
      buffer = at.step == 1 ? grad : attrs.momentum * call.in(4)[i] + (1 - attrs.dampening) * grad;
      grad = attrs.nesterov ? grad + attrs.momentum * buffer : buffer;
    }
    call.out(0)[i] = param - at.lr * grad;
  }
}

void adam_update_ref(RefCall& call) {
  const auto& attrs = call.attrs<AdamUpdateAttrs>();
  const Step at(call, 6);
  const double correction1 = 1 - std::pow(attrs.beta1, at.step), correction2 = 1 - std::pow(attrs.beta2, at.step);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    double param = call.in(0)[i], grad = call.in(1)[i] * at.scale;
    if (attrs.decoupled) {
      param *= 1 - at.lr * attrs.weight_decay;
    } else {
      grad += attrs.weight_decay * param;
    }
    const double mean = attrs.beta1 * call.in(4)[i] + (1 - attrs.beta1) * grad;
    const double square = attrs.beta2 * call.in(5)[i] + (1 - attrs.beta2) * grad * grad;
    const double denominator = std::sqrt(square) / std::sqrt(correction2) + attrs.eps;
    call.out(0)[i] = param - at.lr / correction1 * mean / denominator;
    call.out(1)[i] = mean;
    call.out(2)[i] = square;
  }
}

void rmsprop_update_ref(RefCall& call) {
  const auto& attrs = call.attrs<RmspropUpdateAttrs>();
  const Step at(call, 7);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double param = call.in(0)[i];
    const double grad = call.in(1)[i] * at.scale + attrs.weight_decay * param;
    const double square = attrs.alpha * call.in(4)[i] + (1 - attrs.alpha) * grad * grad;
    call.out(1)[i] = square;
    double variance = square;
    if (attrs.centered) {
      const double mean = attrs.alpha * call.in(5)[i] + (1 - attrs.alpha) * grad;
      call.out(2)[i] = mean;
      variance -= mean * mean;
    }
    const double root = attrs.tf_eps ? std::sqrt(variance + attrs.eps) : std::sqrt(variance) + attrs.eps;
    double direction = grad / root;
    if (attrs.momentum != 0) direction = call.out(3)[i] = attrs.momentum * call.in(6)[i] + direction;
    call.out(0)[i] = param - at.lr * direction;
  }
}

void ema_update_ref(RefCall& call) {
  const double decay = call.in(2)[0];
  const bool copies = !is_floating(call.context().in(0).dtype);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    call.out()[i] = copies ? call.in(1)[i] : decay * call.in(0)[i] + (1 - decay) * call.in(1)[i];
  }
}

void accumulate_ref(RefCall& call) {
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = call.in(0)[i] + call.in(1)[i];
}

void clear_ref(RefCall& call) { std::fill(call.out().v.begin(), call.out().v.end(), 0.0); }

void clip_coefficient_ref(RefCall& call) {
  const double coefficient = call.attrs<ClipCoefficientAttrs>().max_norm / (std::sqrt(call.in(0)[0]) + 1e-6);
  call.out()[0] = coefficient > 1 ? 1 : coefficient;  // NaN stays
}

void finite_gate_ref(RefCall& call) {
  const bool stopped = call.in(0)[0] != 0 || !std::isfinite(call.in(1)[0]);
  call.out(0)[0] = stopped;
  call.out(1)[0] = !stopped;
}

constexpr RefEntry kEntries[] = {
    {"sgd_update", sgd_update_ref}, {"adam_update", adam_update_ref}, {"rmsprop_update", rmsprop_update_ref},
    {"ema_update", ema_update_ref}, {"accumulate", accumulate_ref},   {"clear", clear_ref},
    {"clip_coefficient", clip_coefficient_ref}, {"finite_gate", finite_gate_ref},
};

}  // namespace

std::span<const RefEntry> ref_update() { return kEntries; }

}  // namespace galley
