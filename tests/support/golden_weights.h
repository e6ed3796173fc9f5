#pragma once
// Weights and inputs as a function of (name, index), the same as in tests/golden/models/make_golden.py, so that golden files contain only
// results.

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "libcore/base/shape.h"

namespace galley {

/// shift + scale * u, u uniform in [-1,1): splitmix64 of (FNV-1a of the name + index), top 24 bits; rounded to float32.
inline std::vector<double> golden_values(std::string_view name, int64_t count, double scale = 1, double shift = 0) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t z = h + i + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    values[i] = static_cast<float>(shift + scale * (static_cast<double>(z >> 40) * 0x1p-23 - 1));
  }
  return values;
}

/// The value of a parameter or buffer: He's variance for weights of rank 2 and up, near 1 for other weights and variances, near 0
/// for biases and means, 0 for counters.
inline std::vector<double> golden_state(std::string_view name, const Shape& shape) {
  const int64_t count = shape.elements();
  if (name.ends_with("num_batches_tracked")) return {0};
  if (name.ends_with("running_var")) return golden_values(name, count, 0.5, 1);
  if (shape.rank() >= 2) return golden_values(name, count, std::sqrt(6.0 / (static_cast<double>(count) / static_cast<double>(shape[0]))));
  if (name.ends_with(".weight")) return golden_values(name, count, 0.2, 1);
  return golden_values(name, count, 0.1);
}

/// An input of unit variance.
inline std::vector<double> golden_input(std::string_view name, const Shape& shape) {
  return golden_values(name, shape.elements(), std::sqrt(3.0));
}

}  // namespace galley
