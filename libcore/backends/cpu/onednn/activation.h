#pragma once
// Activations as post-operations of oneDNN primitives.

#include "libcore/ops/attrs.h"
#include "libcore/vendor/onednn/onednn.h"

namespace galley::onednn {

/// An activation as oneDNN's element-wise operation with its two parameters; kNone has no such form.
struct Eltwise {
  dnnl::algorithm algorithm;
  float alpha = 0, beta = 0;
};
inline Eltwise eltwise_of(Activation activation) {
  using dnnl::algorithm;
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kRelu: return {algorithm::eltwise_relu};
    case Activation::kRelu6: return {algorithm::eltwise_clip, 0, 6};
    case Activation::kHardswish: return {algorithm::eltwise_hardswish, 1.f / 6, 0.5f};
    case Activation::kHardsigmoid: return {algorithm::eltwise_hardsigmoid, 1.f / 6, 0.5f};
    case Activation::kSigmoid: return {algorithm::eltwise_logistic};
    case Activation::kSilu: return {algorithm::eltwise_swish, 1};
    case Activation::kGelu: return {algorithm::eltwise_gelu_erf};
    case Activation::kTanh: return {algorithm::eltwise_tanh};
  }
  GALLEY_ASSERT(false, "no activation");
}

/// Appends the activation; nothing for none.
inline void append_activation(dnnl::post_ops& ops, Activation activation) {
  if (activation == Activation::kNone) return;
  const Eltwise e = eltwise_of(activation);
  ops.append_eltwise(e.algorithm, e.alpha, e.beta);
}

}  // namespace galley::onednn
