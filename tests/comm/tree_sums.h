#pragma once
// Numbers of the leaves of a reduction tree, and what their sums must be.

#include <cmath>
#include <cstdint>
#include <vector>

#include "libcore/comm/reduction_tree.h"

namespace galley {

/// A number that looks random, of a leaf and an element. Magnitudes differ, so that sums round.
inline float sample(int leaf, int64_t element) {
  uint64_t x = static_cast<uint64_t>(leaf + 1) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(element) * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 31;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 29;
  const double unit = static_cast<double>(x >> 11) / 9007199254740992.0 - 0.5;
  return static_cast<float>(unit * std::exp2(static_cast<double>(x % 13)));
}

/// The sum of leaves [begin, end) in the order that the header states, by recursion in float.
inline float sum_by_recursion(int begin, int end, int64_t element) {
  if (end - begin == 1) return sample(begin, element);
  int first = 1;
  while (2 * first < end - begin) first *= 2;
  return sum_by_recursion(begin, begin + first, element) + sum_by_recursion(begin + first, end, element);
}

/// The partial sums of a rank, as a rank computes them.
inline std::vector<float> partials_of(const ReductionTree& tree, int rank, int64_t count) {
  std::vector<float> parts;
  for (const LeafRange& range : tree.partials(rank)) {
    for (int64_t i = 0; i < count; ++i) parts.push_back(sum_by_recursion(range.begin, range.end, i));
  }
  return parts;
}

}  // namespace galley
