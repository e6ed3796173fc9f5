#pragma once
// The cells of a benchmark: every combination of what, batch and the swept keys.

#include <string>
#include <utility>
#include <vector>

#include "libcore/recipe/sections.h"

namespace galley {

/// "1..4" -> 1 2 3 4, "1..8x2" -> 1 2 4 8, "2..10+4" -> 2 6 10, anything else itself. Throws (kRecipe) for a range that does not end.
std::vector<std::string> expand_range(const std::string& text);

struct BenchmarkCell {
  std::string what;
  int64_t batch = 1;
  std::vector<std::pair<std::string, std::string>> set;  // swept keys and their values, in the schema's order
  /// "forward batch=16 threads=2"
  std::string name() const;
};

/// All cells that `exclude` leaves, in order: what, then the keys, the batch fastest. Throws (kRecipe) for unknown kinds of work, bad
/// numbers, and where nothing is left.
std::vector<BenchmarkCell> cells_of(const BenchmarkSection& section);

}  // namespace galley
