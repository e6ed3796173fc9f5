// The operators as what they stand for: the references of the convolution and the norm, or of their gradients, one after the other.

#include "libcore/backends/cpu/rewrite/pointwise.h"

#include "libcore/backends/cpu/rewrite/target_operators.h"
#include "libcore/backends/ref/parts.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

/// dx and dweight of the 1x1 convolution, of the gradient of what it gave.
void convolution(RefCall& call, const RefArray& grad, const RefArray& x, const RefArray& weight) {
  Conv2dBackwardDataAttrs data;
  data.input_size = {x.shape[2], x.shape[3]};
  Conv2dBackwardWeightsAttrs weights;
  weights.kernel_size = {1};
  call.out(0) = run_part("conv2d_backward_data", data, {&grad, &weight}, {zeros(x.shape)})[0];
  call.out(1) = run_part("conv2d_backward_weights", weights, {&x, &grad}, {zeros(weight.shape)})[0];
}

/// What the 1x1 convolution gives.
RefArray between_of(const RefArray& x, const RefArray& weight) {
  return run_part("conv2d", Conv2dAttrs(), {&x, &weight}, {zeros({x.shape[0], weight.shape[0], x.shape[2], x.shape[3]})})[0];
}

void forward(RefCall& call) {
  const RefArray& weight = call.in(1);
  const RefArray between = between_of(call.in(0), weight);
  const auto made = run_part("batch_norm_depthwise", call.attrs<BatchNormDepthwiseAttrs>(), {&between, &call.in(2), given(call, 3), given(call, 4)},
                             {zeros(call.out(0).shape), zeros({weight.shape[0]}), zeros({weight.shape[0]})});
  for (size_t i = 0; i < made.size(); ++i) call.out(i) = made[i];

  const RefArray& x = call.in(0);
  const int64_t channels = x.shape[1], pixels = x.shape[2] * x.shape[3];
  const auto n = static_cast<double>(x.shape[0] * pixels);
  const auto at = [&](int64_t image, int64_t channel, int64_t pixel) { return x[(image * channels + channel) * pixels + pixel]; };
  RefArray& moments = call.out(3);
  const auto each_pixel = [&](const auto& body) {
    for (int64_t image = 0; image < x.shape[0]; ++image) {
      for (int64_t pixel = 0; pixel < pixels; ++pixel) body(image, pixel);
    }
  };
  for (int64_t i = 0; i < channels; ++i) each_pixel([&](int64_t image, int64_t pixel) { moments[i] += at(image, i, pixel) / n; });
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t j = 0; j < channels; ++j) {
      each_pixel([&](int64_t image, int64_t pixel) { moments[(i + 1) * channels + j] += (at(image, i, pixel) - moments[i]) * (at(image, j, pixel) - moments[j]) / n; });
    }
  }
}

void norm(RefCall& call) {
  const auto& a = call.attrs<BatchNormBackwardAttrs>();
  const RefArray& between = call.in(1);
  std::vector<RefArray> outputs{zeros(between.shape), zeros({between.shape[1]}), zeros({between.shape[1]})};
  if (a.residual) outputs.push_back(zeros(between.shape));
  const auto gradients = run_part("batch_norm_backward", a, {&call.in(0), &between, &call.in(2), &call.in(3), given(call, 4), given(call, 5), given(call, 6)}, std::move(outputs));
  convolution(call, gradients[0], call.in(7), call.in(8));
  for (size_t i = 1; i < gradients.size(); ++i) call.out(i + 1) = gradients[i];
}

/// Moments that are given are x's, of which there is no need here.
void depthwise(RefCall& call) {
  const RefArray between = between_of(call.in(6), call.in(7));
  const auto gradients =
      run_part("batch_norm_depthwise_backward", call.attrs<BatchNormDepthwiseAttrs>(), {&call.in(0), &call.in(1), &between, &call.in(2), &call.in(3), given(call, 4), given(call, 5)},
               {zeros(between.shape), zeros(call.in(1).shape), zeros({between.shape[1]}), zeros({between.shape[1]})});
  convolution(call, gradients[0], call.in(6), call.in(7));
  for (int64_t i = 0; call.has(8) && i < call.in(8).shape.elements(); ++i) call.out(0)[i] += call.in(8)[i];
  for (size_t i = 1; i < gradients.size(); ++i) call.out(i + 1) = gradients[i];
}

constexpr RefEntry kEntries[] = {{"pointwise_batch_norm_depthwise", forward}, {"pointwise_batch_norm_backward", norm}, {"pointwise_batch_norm_depthwise_backward", depthwise}};

}  // namespace

std::span<const RefEntry> pointwise_references() { return kEntries; }

}  // namespace galley
