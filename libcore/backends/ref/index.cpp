#include "libcore/ops/index.h"

#include "libcore/backends/axis_view.h"
#include "libcore/backends/ref/ref.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

/// Indices are data: a bad one is the input's mistake.
int64_t checked(std::string_view op, double index, int64_t size) {
  GALLEY_CHECK_INPUT(index >= 0 && index < static_cast<double>(size), "[", op, "] index ", index, " is outside of 0..", size - 1);
  return static_cast<int64_t>(index);
}

/// visit(element of the picked array, element of the array that is indexed).
template <class Visit>
void walk(std::string_view op, const RefArray& index, const Shape& whole_shape, int axis, Visit visit) {
  const AxisView picked(index.shape, axis), whole(whole_shape, axis);
  for (int64_t o = 0; o < picked.outer; ++o) {
    for (int64_t s = 0; s < picked.size; ++s) {
      for (int64_t i = 0; i < picked.inner; ++i)
        visit(picked.at(o, s, i), whole.at(o, checked(op, index[picked.at(o, s, i)], whole.size), i));
    }
  }
}

void gather_ref(RefCall& call) {
  const int axis = axis_of(call.attrs<GatherAttrs>().axis, call.context().in(0));
  walk("gather", call.in(1), call.in(0).shape, axis, [&](int64_t picked, int64_t whole) { call.out()[picked] = call.in(0)[whole]; });
}

void scatter_add_ref(RefCall& call) {
  const int axis = axis_of(call.attrs<ScatterAddAttrs>().axis, call.context().in(0));
  walk("scatter_add", call.in(1), call.out().shape, axis, [&](int64_t picked, int64_t whole) { call.out()[whole] += call.in(0)[picked]; });
}

void one_hot_ref(RefCall& call) {
  const AxisView y(call.out().shape, axis_of(call.attrs<OneHotAttrs>().axis, call.context().out(0)));
  for (int64_t o = 0; o < y.outer; ++o) {
    for (int64_t i = 0; i < y.inner; ++i) call.out()[y.at(o, checked("one_hot", call.in(0)[o * y.inner + i], y.size), i)] = 1;
  }
}

void iota_ref(RefCall& call) {
  const AxisView y(call.out().shape, axis_of(call.attrs<IotaAttrs>().axis, call.context().out(0)));
  for (int64_t i = 0; i < call.out().shape.elements(); ++i) call.out()[i] = static_cast<double>(i / y.inner % y.size);
}

constexpr RefEntry kEntries[] = {{"gather", gather_ref}, {"scatter_add", scatter_add_ref}, {"one_hot", one_hot_ref}, {"iota", iota_ref}};

}  // namespace

std::span<const RefEntry> ref_index() { return kEntries; }

}  // namespace galley
