// The element-wise functions and their backward operators: the formulas of their rows.

#include "libcore/ops/elementwise.h"

#include <algorithm>
#include <utility>

#include "libcore/backends/ref/broadcast.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/scalar.h"

namespace galley {
namespace {

/// The row whose first formula is the function at that position of the list.
const ElementwiseRow& row_of(size_t function) {
  const auto rows = elementwise_rows();
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const ElementwiseRow& row) { return row.formulas.front().function == function; });
  GALLEY_ASSERT(found != rows.end());
  return *found;
}

template <size_t kFunction>
void value_ref(RefCall& call) {
  static const ElementwiseRow& row = row_of(kFunction);
  const Options* attributes = call.context().attributes;
  const Formula& formula = row.formula(attributes);
  const FunctionNumbers numbers = function_numbers(attributes);
  RefArray& y = call.out();
  std::vector<BroadcastIndices> walks;
  for (size_t j = 0; j < call.input_count(); ++j) walks.emplace_back(y.shape, call.in(j).shape);
  double x[3];
  for (double& value : y.v) {
    for (size_t j = 0; j < walks.size(); ++j) {
      x[j] = call.in(j)[walks[j].index()];
      walks[j].next();
    }
    value = formula.value(x, numbers);
  }
}

template <size_t kFunction>
void backward_ref(RefCall& call) {
  static const ElementwiseRow& row = row_of(kFunction);
  const Options* attributes = call.context().attributes;
  const Formula& formula = row.formula(attributes);
  const FunctionNumbers numbers = function_numbers(attributes);
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) call.out()[i] = formula.backward(call.in(0)[i], call.in(1)[i], numbers);
}

struct Pair {
  RefFunction value, backward;
};
template <size_t... kFunction>
const Pair& references_of(size_t function, std::index_sequence<kFunction...>) {
  static constexpr Pair all[] = {{value_ref<kFunction>, backward_ref<kFunction>}...};
  return all[function];
}
template <class... F>
const Pair& references_of(size_t function, scalar::FunctionList<F...>) {
  return references_of(function, std::index_sequence_for<F...>());
}

}  // namespace

std::span<const RefEntry> ref_elementwise() {
  static const std::vector<RefEntry> entries = [] {
    std::vector<RefEntry> list;
    for (const OpDef* op : elementwise_ops()) {
      const ElementwiseRow* forward = find_elementwise(op->name);
      const ElementwiseRow& row = forward != nullptr ? *forward : *find_elementwise(op->name, true);
      const Pair& pair = references_of(row.formulas.front().function, scalar::Functions());
      list.push_back({op->name, forward != nullptr ? pair.value : pair.backward});
    }
    return list;
  }();
  return entries;
}

}  // namespace galley
