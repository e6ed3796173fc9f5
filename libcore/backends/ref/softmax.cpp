#include "libcore/ops/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Calls visit(index) for each line along the axis; index(j) is its j-th element.
template <class Visit>
void for_each_line(const Shape& shape, int64_t axis, Visit visit) {
  const int a = static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < shape.rank(); ++i) (i < a ? outer : inner) *= i == a ? 1 : shape[i];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t s = 0; s < inner; ++s) {
      visit([=, length = shape[a]](int64_t j) { return (o * length + j) * inner + s; });
    }
  }
}
int64_t length_of(const Shape& shape, int64_t axis) { return shape[static_cast<int>(axis)]; }

/// y = x - log sum exp x.
void log_softmax_into(const RefArray& x, int64_t axis, RefArray& y) {
  const int64_t length = length_of(x.shape, axis);
  for_each_line(x.shape, axis, [&](auto at) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < length; ++j) largest = std::max(largest, x[at(j)]);
    for (int64_t j = 0; j < length; ++j) sum += std::exp(x[at(j)] - largest);
    for (int64_t j = 0; j < length; ++j) y[at(j)] = x[at(j)] - largest - std::log(sum);
  });
}

void softmax_ref(RefCall& call) {
  log_softmax_into(call.in(0), call.attrs<SoftmaxAttrs>().axis, call.out());
  for (double& value : call.out().v) value = std::exp(value);
}

void log_softmax_ref(RefCall& call) { log_softmax_into(call.in(0), call.attrs<SoftmaxAttrs>().axis, call.out()); }

void softmax_backward_ref(RefCall& call) {
  const RefArray &grad = call.in(0), &y = call.in(1);
  const int64_t axis = call.attrs<SoftmaxAttrs>().axis;
  for_each_line(y.shape, axis, [&](auto at) {
    double sum = 0;
    for (int64_t j = 0; j < length_of(y.shape, axis); ++j) sum += grad[at(j)] * y[at(j)];
    for (int64_t j = 0; j < length_of(y.shape, axis); ++j) call.out()[at(j)] = y[at(j)] * (grad[at(j)] - sum);
  });
}

void log_softmax_backward_ref(RefCall& call) {
  const RefArray &grad = call.in(0), &y = call.in(1);
  const int64_t axis = call.attrs<SoftmaxAttrs>().axis;
  for_each_line(y.shape, axis, [&](auto at) {
    double sum = 0;
    for (int64_t j = 0; j < length_of(y.shape, axis); ++j) sum += grad[at(j)];
    for (int64_t j = 0; j < length_of(y.shape, axis); ++j) call.out()[at(j)] = grad[at(j)] - std::exp(y[at(j)]) * sum;
  });
}

constexpr RefEntry kEntries[] = {
    {"softmax", softmax_ref},
    {"softmax_backward", softmax_backward_ref},
    {"log_softmax", log_softmax_ref},
    {"log_softmax_backward", log_softmax_backward_ref},
};

}  // namespace

std::span<const RefEntry> ref_softmax() { return kEntries; }

}  // namespace galley
