#pragma once
// Globs over names: `*` stands for any run of characters (dots and slashes too), `?` for one.

#include <string_view>

namespace galley {

/// Whether the whole text matches. Linear in pattern times text.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace galley
