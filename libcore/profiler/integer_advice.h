#pragma once
// Advice rules for quantized models. Used by advice.cpp.

#include <optional>

#include "libcore/profiler/advice.h"

namespace galley {

/// Layers that would be faster in float, by a model of the float kernels' time.
std::optional<Advice> int8_slower(const Profile& profile, const ProfileFacts& facts);
/// Float layers between int8 layers.
std::optional<Advice> int8_float_layers(const Profile& profile, const ProfileFacts& facts);
/// Operators without an int8 kernel between int8 layers: the cost of their conversions.
std::optional<Advice> int8_conversions(const Profile& profile, const ProfileFacts& facts);
/// Products on the exact 16-bit path where 7-bit weights would be faster.
std::optional<Advice> int8_saturation(const Profile& profile, const ProfileFacts& facts);

}  // namespace galley
