#pragma once
// Sums of elements with equal indices, in any order: of integers (sampling.h), which do not depend on it. The largest element gives the
// steps of all, so that elements below 2^-37 of it add nothing.

#include "libcore/backends/cuda/kernels/copy.h"
#include "libcore/backends/cuda/kernels/sampling.h"

namespace galley::device {

/// As largest_parts, of the elements that are added.
GALLEY_KERNEL(scatter_largest_parts, (const GatherCall call, const FixedSumCall fixed)) {
  GALLEY_SHARED(float, shared, kThreads);
  float largest = 0;
  for (int64_t i = first_element(); i < fixed.numbers; i += all_threads()) {
    const float x = abs(load<float>(call.from, i, call.type));
    largest = x > largest || is_nan(x) ? x : largest;
    if (is_nan(x)) break;
  }
  largest = block_max(largest, kThreads, shared);
  if (threadIdx.x == 0) fixed.parts[blockIdx.x] = largest;
}
/// An index outside adds nothing.
GALLEY_KERNEL(scatter_add_fixed, (const GatherCall call, const FixedSumCall fixed)) {
  const double largest = largest_of(fixed.largest);
  const int64_t line = call.picked * call.inner;
  for (int64_t i = first_element(); i < fixed.numbers; i += all_threads()) {
    const float value = load<float>(call.from, i, call.type);
    const int64_t place = load<int64_t>(call.index, i, call.index_type);
    if (value == 0 || place < 0 || place >= call.whole) continue;
    const int64_t outer = i / line;
    add_fixed(fixed.sums, (outer * call.whole + place) * call.inner + i % call.inner, value, largest);
  }
}
GALLEY_KERNEL(scatter_sums, (const GatherCall call, const FixedSumCall fixed)) {
  const double largest = largest_of(fixed.largest);
  for (int64_t i = first_element(); i < fixed.elements; i += all_threads()) {
    const double sum = static_cast<double>(static_cast<int64_t>(fixed.sums[i]));
    // Beside an element that is not finite, others keep their sums.
    store(largest - largest == 0 ? static_cast<float>(sum / kFixedSteps * largest) : scattered_sum(call, i), call.to, i, call.type);
  }
}

}  // namespace galley::device
