#pragma once
// The windows of a convolution, which make it a product of matrices. For backends/ref only.

#include <vector>

#include "libcore/base/shape.h"
#include "libcore/ops/attrs.h"

namespace galley {

/// The windows of one image and group of a convolution with the weight w [O,C/groups,kh,kw] and the result y [N,O,H,W]: a row of
/// `terms` values of x for each of the `places` of the result, in the order of the weight's values.
struct ConvWindows {
  int64_t places = 0, terms = 0, outputs = 0;  // outputs: channels of y in a group
  std::vector<int64_t> from;                   // [places, terms]: index in the group's channels of x; -1: outside of the image

  template <class Attrs>
  ConvWindows(const Attrs& attrs, const Shape& x, const Shape& w, const Shape& y)
      : places(y[2] * y[3]), terms(w[1] * w[2] * w[3]), outputs(w[0] / attrs.groups) {
    const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
    from.reserve(static_cast<size_t>(places * terms));
    for (int64_t place = 0; place < places; ++place) {
      for (int64_t term = 0; term < terms; ++term) {
        const int64_t c = term / (w[2] * w[3]), kh = term / w[3] % w[2], kw = term % w[3];
        const int64_t h = place / y[3] * stride[0] - padding[0] + kh * dilation[0];
        const int64_t v = place % y[3] * stride[1] - padding[1] + kw * dilation[1];
        from.push_back(h >= 0 && h < x[2] && v >= 0 && v < x[3] ? (c * x[2] + h) * x[3] + v : -1);
      }
    }
  }

  /// The values of x, whose group begins at `x`; 0 outside of the image.
  void gather(const double* x, std::vector<double>& values) const {
    values.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) values[i] = from[i] < 0 ? 0 : x[from[i]];
  }
  /// Adds values to those of x.
  void scatter(const std::vector<double>& values, double* x) const {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] >= 0) x[from[i]] += values[i];
    }
  }
};

}  // namespace galley
