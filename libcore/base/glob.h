#pragma once
// Glob patterns for names: `*` matches any run of characters (dots and slashes too), `?` matches one.

#include <string_view>

namespace galley {

/// Whether the pattern matches the whole text. Takes time O(pattern * text).
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace galley
