#pragma once
// The loop of a convolution. For backends/ref only.

#include "libcore/base/shape.h"
#include "libcore/ops/attrs.h"

namespace galley {

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

}  // namespace galley
