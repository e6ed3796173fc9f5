#pragma once
// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, at most U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace galley {

/// Length in bytes (1 to 4) of the character that begins at text[at], or 0 if no valid sequence begins there.
size_t utf8_length(std::string_view text, size_t at);

/// The code point of the sequence at text[at], whose length comes from utf8_length.
uint32_t utf8_code_point(std::string_view text, size_t at, size_t length);

/// Position of the first byte that is not part of a valid sequence; npos if the text is valid.
size_t find_invalid_utf8(std::string_view text);

}  // namespace galley
