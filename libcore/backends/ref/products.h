#pragma once
// Loops of sums of products. For backends/ref only.

#include <cstdint>

namespace galley {

/// The sum of n products. Eight sums are added at the end, so that the compiler can use vectors.
inline double sum_of_products(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Adds n products with a factor to `sums`.
inline void add_products(double factor, const double* a, double* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] += factor * a[i];
}

}  // namespace galley
