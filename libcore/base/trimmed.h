#pragma once

#include <string_view>

namespace galley {

/// The text without the characters of `set` at its begin and its end.
inline std::string_view trimmed(std::string_view text, std::string_view set = " ") {
  const size_t begin = text.find_first_not_of(set);
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, text.find_last_not_of(set) + 1 - begin);
}

}  // namespace galley
