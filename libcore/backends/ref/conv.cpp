#include "libcore/ops/conv.h"

#include "libcore/backends/ref/conv_windows.h"
#include "libcore/backends/ref/products.h"
#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Visits the images and groups of a convolution with results of shape y: visit(first value of the group in x, first output in y, first
/// value in the weight).
template <class Visit>
void for_each_group(const ConvWindows& windows, int64_t groups, const Shape& x, const Shape& y, Visit visit) {
  const int64_t channels = x[1] / groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      visit((n * x[1] + g * channels) * x[2] * x[3], (n * y[1] + g * windows.outputs) * windows.places,
            g * windows.outputs * windows.terms);
    }
  }
}

void conv2d_ref(RefCall& call) {
  const auto& attrs = call.attrs<Conv2dAttrs>();
  const RefArray &x = call.in(0), &w = call.in(1);
  RefArray& y = call.out();
  const ConvWindows windows(attrs, x.shape, w.shape, y.shape);
  std::vector<double> values;
  for_each_group(windows, attrs.groups, x.shape, y.shape, [&](int64_t x0, int64_t y0, int64_t w0) {
    windows.gather(x.v.data() + x0, values);
    for (int64_t o = 0; o < windows.outputs; ++o) {
      for (int64_t place = 0; place < windows.places; ++place) {
        y[y0 + o * windows.places + place] =
            sum_of_products(w.v.data() + w0 + o * windows.terms, values.data() + place * windows.terms, windows.terms);
      }
    }
  });
}

void conv2d_backward_data_ref(RefCall& call) {
  const auto& attrs = call.attrs<Conv2dBackwardDataAttrs>();
  const RefArray &grad = call.in(0), &w = call.in(1);
  RefArray& dx = call.out();
  const ConvWindows windows(attrs, dx.shape, w.shape, grad.shape);
  for_each_group(windows, attrs.groups, dx.shape, grad.shape, [&](int64_t x0, int64_t y0, int64_t w0) {
    std::vector<double> values(windows.from.size());
    for (int64_t o = 0; o < windows.outputs; ++o) {
      for (int64_t place = 0; place < windows.places; ++place) {
        add_products(grad[y0 + o * windows.places + place], w.v.data() + w0 + o * windows.terms, values.data() + place * windows.terms,
                     windows.terms);
      }
    }
    windows.scatter(values, dx.v.data() + x0);
  });
}

void conv2d_backward_weights_ref(RefCall& call) {
  const auto& attrs = call.attrs<Conv2dBackwardWeightsAttrs>();
  const RefArray &x = call.in(0), &grad = call.in(1);
  RefArray& dw = call.out();
  const ConvWindows windows(attrs, x.shape, dw.shape, grad.shape);
  std::vector<double> values;
  for_each_group(windows, attrs.groups, x.shape, grad.shape, [&](int64_t x0, int64_t y0, int64_t w0) {
    windows.gather(x.v.data() + x0, values);
    for (int64_t o = 0; o < windows.outputs; ++o) {
      for (int64_t place = 0; place < windows.places; ++place) {
        add_products(grad[y0 + o * windows.places + place], values.data() + place * windows.terms, dw.v.data() + w0 + o * windows.terms,
                     windows.terms);
      }
    }
  });
}

constexpr RefEntry kEntries[] = {
    {"conv2d", conv2d_ref},
    {"conv2d_backward_data", conv2d_backward_data_ref},
    {"conv2d_backward_weights", conv2d_backward_weights_ref},
};

}  // namespace

std::span<const RefEntry> ref_conv() { return kEntries; }

}  // namespace galley
