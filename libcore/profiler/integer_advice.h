#pragma once
// The rules of advice about models on integers. For advice.cpp.

#include <optional>

#include "libcore/profiler/advice.h"

namespace galley {

/// Layers that would be faster in float, by a model of the float kernels.
std::optional<Advice> int8_slower(const Profile& profile, const ProfileFacts& facts);
/// Layers that were left in float between layers on integers.
std::optional<Advice> int8_float_layers(const Profile& profile, const ProfileFacts& facts);
/// Operators without an integer form between layers on integers: their conversions.
std::optional<Advice> int8_conversions(const Profile& profile, const ProfileFacts& facts);
/// Products on the exact 16-bit way, where one bit less would be faster.
std::optional<Advice> int8_saturation(const Profile& profile, const ProfileFacts& facts);

}  // namespace galley
