#include "libcore/ops/binary.h"

#include "libcore/backends/ref/broadcast.h"

namespace galley {
namespace {

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
    {"sum_to", sum_to_ref},
    {"sum_products", sum_products_ref},
    {"broadcast_to", broadcast_to_ref},
};

}  // namespace

std::span<const RefEntry> ref_broadcast() { return kEntries; }

}  // namespace galley
