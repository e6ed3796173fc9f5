#include "libcore/base/utf8.h"

namespace galley {

size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF && follows(1)) return 2;
  if (first == 0xE0 && byte(1) >= 0xA0 && follows(1) && follows(2)) return 3;
  if (first == 0xED && byte(1) <= 0x9F && follows(1) && follows(2)) return 3;
  if (first >= 0xE1 && first <= 0xEF && first != 0xED && follows(1) && follows(2)) return 3;
  if (first == 0xF0 && byte(1) >= 0x90 && follows(1) && follows(2) && follows(3)) return 4;
  if (first == 0xF4 && byte(1) <= 0x8F && follows(1) && follows(2) && follows(3)) return 4;
  if (first >= 0xF1 && first <= 0xF3 && follows(1) && follows(2) && follows(3)) return 4;
  return 0;
}

uint32_t utf8_code_point(std::string_view text, size_t at, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  if (length == 1) return byte(0);
  uint32_t code = byte(0) & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) code = (code << 6) | (byte(i) & 0x3F);
  return code;
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace galley
