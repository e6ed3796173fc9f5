#pragma once
// Advice on steps far below the machine's limit: the operators that take the most time above it, what bounds each, and a change for each.
// Used by advice.cpp.

#include <optional>

#include "libcore/profiler/advice.h"

namespace galley {

/// Least ratio of the limits of bf16 and f32 for which bf16 is suggested.
inline constexpr double kFasterBf16 = 1.2;
/// How many times as fast as f32 the machine multiplies bf16; 2 if that was not measured.
double bf16_speed(const MachineLimits& machine);

/// A step that reaches less than half of the machine's limit. None if the limits are unknown.
std::optional<Advice> below_limit(const Profile& profile, const ProfileFacts& facts);

}  // namespace galley
