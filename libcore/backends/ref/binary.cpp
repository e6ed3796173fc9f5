#include "libcore/ops/binary.h"

#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Logical index of the element of `small` that stands behind element `i` of `large` under broadcasting.
int64_t broadcast_index(int64_t i, const Shape& large, const Shape& small) {
  int64_t index = 0, step = 1;
  for (int back = 1; back <= large.rank(); ++back) {
    const int64_t position = i % large[-back];
    i /= large[-back];
    if (back > small.rank()) continue;
    if (small[-back] != 1) index += position * step;
    step *= small[-back];
  }
  return index;
}

template <double (*kFunction)(double, double)>
void binary_ref(RefCall& call) {
  RefArray& y = call.out();
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    y[i] = kFunction(call.in(0)[broadcast_index(i, y.shape, call.in(0).shape)], call.in(1)[broadcast_index(i, y.shape, call.in(1).shape)]);
  }
}

double add_of(double a, double b) { return a + b; }
double sub_of(double a, double b) { return a - b; }
double mul_of(double a, double b) { return a * b; }
double div_of(double a, double b) { return a / b; }
/// NaN on either side is the result, as the framework's.
double maximum_of(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double minimum_of(double a, double b) { return std::isnan(a) || a < b ? a : b; }
double power_of(double a, double b) { return std::pow(a, b); }
double equal_of(double a, double b) { return a == b ? 1 : 0; }
double less_of(double a, double b) { return a < b ? 1 : 0; }
double greater_of(double a, double b) { return a > b ? 1 : 0; }

void where_ref(RefCall& call) {
  RefArray& y = call.out();
  for (int64_t i = 0; i < y.shape.elements(); ++i) {
    const bool condition = call.in(0)[broadcast_index(i, y.shape, call.in(0).shape)] != 0;
    const RefArray& chosen = call.in(condition ? 1 : 2);
    y[i] = chosen[broadcast_index(i, y.shape, chosen.shape)];
  }
}

void sum_to_ref(RefCall& call) {
  const RefArray& x = call.in(0);
  for (int64_t i = 0; i < x.shape.elements(); ++i) call.out()[broadcast_index(i, x.shape, call.out().shape)] += x[i];
}

void sum_products_ref(RefCall& call) {
  const RefArray &a = call.in(0), &b = call.in(1);
  for (int64_t i = 0; i < a.shape.elements(); ++i) call.out()[broadcast_index(i, a.shape, call.out().shape)] += a[i] * b[i];
}

void broadcast_to_ref(RefCall& call) {
  RefArray& y = call.out();
  for (int64_t i = 0; i < y.shape.elements(); ++i) y[i] = call.in(0)[broadcast_index(i, y.shape, call.in(0).shape)];
}

constexpr RefEntry kEntries[] = {
    {"add", binary_ref<add_of>},
    {"sub", binary_ref<sub_of>},
    {"mul", binary_ref<mul_of>},
    {"div", binary_ref<div_of>},
    {"maximum", binary_ref<maximum_of>},
    {"minimum", binary_ref<minimum_of>},
    {"power", binary_ref<power_of>},
    {"equal", binary_ref<equal_of>},
    {"less", binary_ref<less_of>},
    {"greater", binary_ref<greater_of>},
    {"where", where_ref},
    {"sum_to", sum_to_ref},
    {"sum_products", sum_products_ref},
    {"broadcast_to", broadcast_to_ref},
};

}  // namespace

std::span<const RefEntry> ref_binary() { return kEntries; }

}  // namespace galley
