#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/kernels/ref/table.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/softmax.h"

namespace galley {
namespace {

/// Calls row(index of element 0, distance of elements, number of elements) for each line along the axis.
template <class Row>
void for_each_row(RefCall& call, Row row) {
  const Shape& shape = call.in(0).shape;
  const int axis = axis_of(call.attrs<SoftmaxAttrs>().axis, call.context().in(0));
  int64_t inner = 1;
  for (int d = axis + 1; d < shape.rank(); ++d) inner *= shape[d];
  for (int64_t i = 0; i < shape.elements(); ++i) {
    if (i / inner % shape[axis] == 0) row(i, inner, shape[axis]);
  }
}

template <bool kLog>
void forward(RefCall& call) {
  const RefArray& x = call.in(0);
  for_each_row(call, [&](int64_t first, int64_t step, int64_t count) {
    double top = x[first], sum = 0;
    for (int64_t i = 1; i < count; ++i) top = std::max(top, x[first + i * step]);
    for (int64_t i = 0; i < count; ++i) sum += std::exp(x[first + i * step] - top);
    for (int64_t i = 0; i < count; ++i) {
      const double shifted = x[first + i * step] - top;
      call.out()[first + i * step] = kLog ? shifted - std::log(sum) : std::exp(shifted) / sum;
    }
  });
}

template <bool kLog>
void backward(RefCall& call) {
  const RefArray& grad = call.in(0);
  const RefArray& y = call.in(1);
  for_each_row(call, [&](int64_t first, int64_t step, int64_t count) {
    double sum = 0;
    for (int64_t i = first; i < first + count * step; i += step) sum += kLog ? grad[i] : grad[i] * y[i];
    for (int64_t i = first; i < first + count * step; i += step) call.out()[i] = kLog ? grad[i] - std::exp(y[i]) * sum : y[i] * (grad[i] - sum);
  });
}

constexpr std::array kEntries{RefEntry{"softmax", forward<false>}, RefEntry{"softmax_backward", backward<false>}, RefEntry{"log_softmax", forward<true>},
                              RefEntry{"log_softmax_backward", backward<true>}};

}  // namespace

std::span<const RefEntry> ref_softmax() { return kEntries; }

}  // namespace galley
