#pragma once
// Keys of the type Duration that take times only.

#include <string_view>

#include "libcore/base/units.h"

namespace galley {

constexpr std::string_view kTimeGrammar = "90s, 20min, 1h30min";

/// Whether a key takes times only, not epochs or steps. Its value before reading, the default, is a time then.
inline bool takes_time(const TextValue& initial) {
  const auto* duration = dynamic_cast<const Duration*>(&initial);
  return duration != nullptr && duration->unit == DurationUnit::kSeconds;
}

}  // namespace galley
