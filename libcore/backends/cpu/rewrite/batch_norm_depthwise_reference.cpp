// The operator as what it stands for: the references of its two parts, one after the other.

#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"

#include "libcore/backends/cpu/rewrite/target_operators.h"
#include "libcore/backends/ref/parts.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

template <class Attrs>
Attrs norm_of(const BatchNormDepthwiseAttrs& a) {
  Attrs norm;
  norm.eps = a.eps;
  norm.activation = a.activation;
  return norm;
}

template <class Attrs>
Attrs convolution_of(const BatchNormDepthwiseAttrs& a, int64_t channels) {
  Attrs attrs;
  static_cast<Conv2dWindow&>(attrs) = a.window(channels);
  return attrs;
}

void forward(RefCall& call) {
  const auto& a = call.attrs<BatchNormDepthwiseAttrs>();
  const RefArray& x = call.in(0);
  const auto normalised = run_part("batch_norm", norm_of<BatchNormAttrs>(a), {&x, given(call, 2), given(call, 3)}, {zeros(x.shape), zeros({x.shape[1]}), zeros({x.shape[1]})});
  call.out(1) = normalised[1];
  call.out(2) = normalised[2];
  call.out(0) = run_part("conv2d", convolution_of<Conv2dAttrs>(a, x.shape[1]), {&normalised[0], &call.in(1)}, {zeros(call.out(0).shape)})[0];
}

void backward(RefCall& call) {
  const auto& a = call.attrs<BatchNormDepthwiseAttrs>();
  const RefArray &grad = call.in(0), &weight = call.in(1), &x = call.in(2), &mean = call.in(3), &var = call.in(4);
  const int64_t channels = x.shape[1];
  const RefArray normalised = run_part("batch_norm_inference", norm_of<BatchNormInferenceAttrs>(a), {&x, given(call, 5), given(call, 6), &mean, &var}, {zeros(x.shape)})[0];
  call.out(1) = run_part("conv2d_backward_weights", convolution_of<Conv2dBackwardWeightsAttrs>(a, channels), {&normalised, &grad}, {zeros(weight.shape)})[0];
  const RefArray behind = run_part("conv2d_backward_data", convolution_of<Conv2dBackwardDataAttrs>(a, channels), {&grad, &weight}, {zeros(x.shape)})[0];
  const auto gradients =
      run_part("batch_norm_backward", norm_of<BatchNormBackwardAttrs>(a), {&behind, &x, &mean, &var, given(call, 5), given(call, 6)}, {zeros(x.shape), zeros({channels}), zeros({channels})});
  call.out(0) = gradients[0];
  call.out(2) = gradients[1];
  call.out(3) = gradients[2];
}

constexpr RefEntry kEntries[] = {{"batch_norm_depthwise", forward}, {"batch_norm_depthwise_backward", backward}};

}  // namespace

std::span<const RefEntry> batch_norm_depthwise_references() { return kEntries; }

}  // namespace galley
