#pragma once
// Numbers that decide which algorithm runs and how it divides its work, as data: conv_thresholds.h, quantized_thresholds.h. The tables of
// docs/performance/rules.md#thresholds are made from these two headers (scripts/check-docs --write).

#include <cstdint>
#include <string_view>

namespace galley {

struct Threshold {
  int64_t value;
  std::string_view decides;
  /// The command whose time decided; "derived: " and the bound of rounding or memory that it keeps; or "estimate: " and what it was
  /// estimated from. docs/performance/notes.md has the figures with machine and date. To measure again: change the value, build, and run
  /// the command with both builds in turns.
  std::string_view measured_by;
};

}  // namespace galley
