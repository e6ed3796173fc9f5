#include "libcore/ops/conv.h"

#include "libcore/kernels/ref/activation.h"
#include "libcore/kernels/ref/ref.h"

namespace galley {
namespace {

/// Visits every product of a convolution: visit(index in x, index in weight, index in y).
template <class Attrs, class Visit>
void for_each_product(const Attrs& attrs, const Shape& x, const Shape& w, const Shape& y, Visit visit) {
  const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
  const int64_t outputs_per_group = w[0] / attrs.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      const int64_t first_channel = o / outputs_per_group * w[1];
      for (int64_t c = 0; c < w[1]; ++c) {
        for (int64_t kh = 0; kh < w[2]; ++kh) {
          for (int64_t kw = 0; kw < w[3]; ++kw) {
            for (int64_t row = 0; row < y[2]; ++row) {
              const int64_t h = row * stride[0] - padding[0] + kh * dilation[0];
              if (h < 0 || h >= x[2]) continue;
              for (int64_t column = 0; column < y[3]; ++column) {
                const int64_t v = column * stride[1] - padding[1] + kw * dilation[1];
                if (v < 0 || v >= x[3]) continue;
                visit(((n * x[1] + first_channel + c) * x[2] + h) * x[3] + v, ((o * w[1] + c) * w[2] + kh) * w[3] + kw,
                      ((n * y[1] + o) * y[2] + row) * y[3] + column);
              }
            }
          }
        }
      }
    }
  }
}

void conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<Conv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  for_each_product(attrs, x.shape, w.shape, y.shape, [&](int64_t i, int64_t k, int64_t o) { y[o] += x[i] * w[k]; });
  const int64_t pixels = y.shape[2] * y.shape[3];
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    if (call.has(2)) y[i] += call.in(2)[i / pixels % y.shape[1]];
    if (call.has(3)) y[i] += call.in(3)[i];
    y[i] = activate(attrs.activation, y[i]);
  }
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
