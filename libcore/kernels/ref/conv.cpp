#include <array>

#include "libcore/kernels/ref/activation.h"
#include "libcore/kernels/ref/table.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

/// Calls tap(output index, input index, weight index) for every product of the convolution x * w -> y.
template <class Attrs, class Tap>
void for_each_tap(const Attrs& a, const Shape& x, const Shape& w, const Shape& y, Tap tap) {
  const auto stride = pair(a.stride), padding = pair(a.padding), dilation = pair(a.dilation);
  const int64_t group_out = y[1] / a.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      for (int64_t h = 0; h < y[2]; ++h) {
        for (int64_t q = 0; q < y[3]; ++q) {
          const int64_t out = ((n * y[1] + o) * y[2] + h) * y[3] + q;
          for (int64_t c = 0; c < w[1]; ++c) {
            const int64_t channel = o / group_out * w[1] + c;
            for (int64_t kh = 0; kh < w[2]; ++kh) {
              const int64_t row = h * stride[0] - padding[0] + kh * dilation[0];
              if (row < 0 || row >= x[2]) continue;
              for (int64_t kw = 0; kw < w[3]; ++kw) {
                const int64_t column = q * stride[1] - padding[1] + kw * dilation[1];
                if (column < 0 || column >= x[3]) continue;
                tap(out, ((n * x[1] + channel) * x[2] + row) * x[3] + column, ((o * w[1] + c) * w[2] + kh) * w[3] + kw);
              }
            }
          }
        }
      }
    }
  }
}

void conv2d_ref(RefCall& call) {
  const auto& a = call.attrs<Conv2dAttrs>();
  const RefArray& x = call.in(0);
  const RefArray& w = call.in(1);
  RefArray& y = call.out();
  for_each_tap(a, x.shape, w.shape, y.shape, [&](int64_t out, int64_t in, int64_t tap) { y[out] += x[in] * w[tap]; });
  const int64_t pixels = y.shape[2] * y.shape[3];
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    if (call.has(2)) y[i] += call.in(2)[i / pixels % y.shape[1]];
    if (call.has(3)) y[i] += call.in(3)[i];
    y[i] = apply_activation(a.activation, y[i]);
  }
}

void backward_data_ref(RefCall& call) {
  const RefArray& grad = call.in(0);
  const RefArray& w = call.in(1);
  RefArray& dx = call.out();
  for_each_tap(call.attrs<Conv2dBackwardDataAttrs>(), dx.shape, w.shape, grad.shape, [&](int64_t out, int64_t in, int64_t tap) { dx[in] += grad[out] * w[tap]; });
}

void backward_weights_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  const RefArray& grad = call.in(1);
  RefArray& dw = call.out();
  for_each_tap(call.attrs<Conv2dBackwardWeightsAttrs>(), x.shape, dw.shape, grad.shape, [&](int64_t out, int64_t in, int64_t tap) { dw[tap] += grad[out] * x[in]; });
}

constexpr std::array kEntries{RefEntry{"conv2d", conv2d_ref}, RefEntry{"conv2d_backward_data", backward_data_ref},
                              RefEntry{"conv2d_backward_weights", backward_weights_ref}};

}  // namespace

std::span<const RefEntry> ref_conv() { return kEntries; }

}  // namespace galley
