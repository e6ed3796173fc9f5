#pragma once
// The cells of a benchmark: every combination of kind of work, batch size and swept keys.

#include <string>
#include <utility>
#include <vector>

#include "libcore/recipe/sections.h"

namespace galley {

/// Expands a range: "1..4" -> 1 2 3 4, "1..8x2" -> 1 2 4 8, "2..10+4" -> 2 6 10. Other texts are returned unchanged. Throws (kRecipe) for
/// a range that never reaches its end.
std::vector<std::string> expand_range(const std::string& text);

/// One measurement: a kind of work, a batch size and the values of the swept keys.
struct BenchmarkCell {
  std::string what;
  int64_t batch = 1;
  std::vector<std::pair<std::string, std::string>> set;  ///< Swept keys and their values, in the schema's order.
  /// E.g. "forward batch=16 threads=2".
  std::string name() const;
};

/// All cells that `exclude` does not remove. The kind of work changes slowest, then the swept keys, the batch size fastest. Throws
/// (kRecipe) for unknown kinds of work, invalid numbers, and if no cell remains.
std::vector<BenchmarkCell> cells_of(const BenchmarkSection& section);

}  // namespace galley
