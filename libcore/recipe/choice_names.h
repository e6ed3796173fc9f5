#pragma once
// The names of choices that reports print as the recipe spells them.

#include <array>
#include <string_view>

#include "libcore/recipe/sections.h"

namespace galley {

/// memory_format, in the order of MemoryFormatChoice.
inline constexpr std::array<std::string_view, 4> kMemoryFormatNames{"auto", "contiguous", "channels_last", "channels_last_3d"};
static_assert(static_cast<size_t>(MemoryFormatChoice::kChannelsLast3d) + 1 == kMemoryFormatNames.size());
/// precision.compute and others, in the order of PrecisionName.
inline constexpr std::array<std::string_view, 4> kPrecisionNames{"f32", "bf16", "f16", "f64"};
static_assert(static_cast<size_t>(PrecisionName::kF64) + 1 == kPrecisionNames.size());

inline std::string_view name_of(MemoryFormatChoice format) { return kMemoryFormatNames[static_cast<size_t>(format)]; }
inline std::string_view name_of(PrecisionName precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }

}  // namespace galley
