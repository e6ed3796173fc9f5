#include "libcore/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

/// For each element of x in logical order: visit(index in x, index in the reduced array).
template <class Visit>
void reduce(const Shape& x, const std::vector<int>& axes, Visit visit) {
  Shape steps = x;  // of the reduced array; 0 along reduced axes
  int64_t step = 1;
  for (int d = x.rank() - 1; d >= 0; --d) {
    const bool gone = std::find(axes.begin(), axes.end(), d) != axes.end();
    steps[d] = gone ? 0 : step;
    if (!gone) step *= x[d];
  }
  for (int64_t i = 0; i < x.elements(); ++i) {
    int64_t rest = i, target = 0;
    for (int d = x.rank() - 1; d >= 0; --d) {
      target += rest % x[d] * steps[d];
      rest /= x[d];
    }
    visit(i, target);
  }
}

std::vector<int> axes_of_call(const RefCall& call) { return axes_of(call.attrs<ReduceAttrs>().axes, call.context().in(0)); }

void sum_ref(RefCall& call) {
  reduce(call.in(0).shape, axes_of_call(call), [&](int64_t i, int64_t target) { call.out()[target] += call.in(0)[i]; });
}

template <int kSign>
void extremum_ref(RefCall& call) {
  std::vector<bool> seen(call.out().v.size());
  reduce(call.in(0).shape, axes_of_call(call), [&](int64_t i, int64_t target) {
    const double x = call.in(0)[i];
    double& best = call.out()[target];
    if (!seen[static_cast<size_t>(target)] || std::isnan(x) || kSign * x > kSign * best) best = x;
    seen[static_cast<size_t>(target)] = true;
  });
}

/// Elements along one axis are `inner` apart; `outer` blocks of size * inner follow each other.
struct AxisWalk {
  int64_t outer = 1, size = 1, inner = 1;
  AxisWalk(const Shape& x, int axis) : size(x[axis]) {
    for (int d = 0; d < x.rank(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : x[d];
  }
};

/// Larger first, NaN largest, the lower index first among equals.
bool comes_first(double a, int64_t index_a, double b, int64_t index_b) {
  const bool nan_a = std::isnan(a), nan_b = std::isnan(b);
  if (nan_a != nan_b) return nan_a;
  if (!nan_a && a != b) return a > b;
  return index_a < index_b;
}

std::vector<int64_t> ranking(const RefArray& x, const AxisWalk& walk, int64_t first) {
  std::vector<int64_t> order(static_cast<size_t>(walk.size));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return comes_first(x[first + a * walk.inner], a, x[first + b * walk.inner], b); });
  return order;
}

void topk_ref(RefCall& call) {
  const auto& attrs = call.attrs<TopkAttrs>();
  const AxisWalk walk(call.in(0).shape, axis_of(attrs.axis, call.context().in(0)));
  for (int64_t o = 0; o < walk.outer; ++o) {
    for (int64_t i = 0; i < walk.inner; ++i) {
      const int64_t first = o * walk.size * walk.inner + i;
      const std::vector<int64_t> order = ranking(call.in(0), walk, first);
      for (int64_t k = 0; k < attrs.k; ++k) {
        const int64_t source = order[static_cast<size_t>(k)], target = (o * attrs.k + k) * walk.inner + i;
        call.out(0)[target] = call.in(0)[first + source * walk.inner];
        call.out(1)[target] = static_cast<double>(source);
      }
    }
  }
}

constexpr RefEntry kEntries[] = {{"sum", sum_ref}, {"amax", extremum_ref<1>}, {"amin", extremum_ref<-1>}, {"topk", topk_ref}};

}  // namespace

std::span<const RefEntry> ref_reduce() { return kEntries; }

}  // namespace galley
