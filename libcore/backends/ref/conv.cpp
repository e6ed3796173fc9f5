#include "libcore/ops/conv.h"

#include "libcore/backends/ref/conv_products.h"
#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

void conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<Conv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  for_each_product(attrs, x.shape, w.shape, y.shape, [&](int64_t i, int64_t k, int64_t o) { y[o] += x[i] * w[k]; });
}

void conv2d_backward_data_ref(RefCall& call) {
  const RefArray &grad = call.in(0), &w = call.in(1);
  RefArray& dx = call.out();
  for_each_product(call.attrs<Conv2dBackwardDataAttrs>(), dx.shape, w.shape, grad.shape,
                   [&](int64_t i, int64_t k, int64_t o) { dx[i] += grad[o] * w[k]; });
}

void conv2d_backward_weights_ref(RefCall& call) {
  const RefArray &x = call.in(0), &grad = call.in(1);
  RefArray& dw = call.out();
  for_each_product(call.attrs<Conv2dBackwardWeightsAttrs>(), x.shape, dw.shape, grad.shape,
                   [&](int64_t i, int64_t k, int64_t o) { dw[k] += x[i] * grad[o]; });
}

constexpr RefEntry kEntries[] = {
    {"conv2d", conv2d_ref},
    {"conv2d_backward_data", conv2d_backward_data_ref},
    {"conv2d_backward_weights", conv2d_backward_weights_ref},
};

}  // namespace

std::span<const RefEntry> ref_conv() { return kEntries; }

}  // namespace galley
