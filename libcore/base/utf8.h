#pragma once
// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, at most U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace galley {

/// Bytes of the character that begins at text[at] (1 to 4), or 0 where no valid sequence begins there.
size_t utf8_length(std::string_view text, size_t at);

/// The code point of a sequence of the length that utf8_length gave.
uint32_t utf8_code_point(std::string_view text, size_t at, size_t length);

/// Position of the first byte that belongs to no valid sequence; npos where the text is valid.
size_t find_invalid_utf8(std::string_view text);

}  // namespace galley
