#pragma once
// Counts with a noun, for messages.

#include <cstdint>
#include <string>
#include <string_view>

namespace galley {

/// "1 image", "2,048 images", "3 batches": the noun in its number.
std::string counted(int64_t count, std::string_view noun);

}  // namespace galley
