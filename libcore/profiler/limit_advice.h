#pragma once
// Advice on steps far below the machine's limit: the operators that take the most time above it, what bounds each, and a change for each.
// Used by advice.cpp.

#include <optional>

#include "libcore/profiler/advice.h"

namespace galley {

/// A step that reaches less than half of the machine's limit. None if the limits are unknown.
std::optional<Advice> below_limit(const Profile& profile, const ProfileFacts& facts);

}  // namespace galley
