// Laws of RFC 3629: each code point except surrogates has exactly one sequence, and no other bytes are valid.

#include "libcore/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace galley {
namespace {

// The table of RFC 3629, section 3.
std::string encoded(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | (code >> 6)), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000) return {byte(0xE0 | (code >> 12)), byte(0x80 | ((code >> 6) & 0x3F)), byte(0x80 | (code & 0x3F))};
  return {byte(0xF0 | (code >> 18)), byte(0x80 | ((code >> 12) & 0x3F)), byte(0x80 | ((code >> 6) & 0x3F)), byte(0x80 | (code & 0x3F))};
}

TEST(Utf8, EveryCodePointHasItsSequence) {
  for (uint32_t code = 0; code <= 0x110000; ++code) {
    const std::string text = encoded(code);
    const bool valid = code < 0x110000 && !(code >= 0xD800 && code <= 0xDFFF);
    ASSERT_EQ(utf8_length(text, 0), valid ? text.size() : 0) << code;
    if (valid) {
      ASSERT_EQ(utf8_code_point(text, 0, text.size()), code);
    }
    if (valid && text.size() > 1) {
      ASSERT_EQ(utf8_length(text.substr(0, text.size() - 1), 0), 0u) << "cut short: " << code;
    }
  }
}

TEST(Utf8, NothingElseIsASequence) {
  // All strings of one to three bytes, and strings of four bytes near the limits: there are as many valid sequences as code points.
  int64_t counts[5] = {};
  std::string text(3, '\0');
  for (uint32_t bits = 0; bits < (1u << 24); ++bits) {
    text = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
    ++counts[utf8_length(text, 0)];
  }
  EXPECT_EQ(counts[1], int64_t{128} << 16);
  EXPECT_EQ(counts[2], int64_t{0x800 - 0x80} << 8);
  EXPECT_EQ(counts[3], 0x10000 - 0x800 - 0x800);
  EXPECT_EQ(counts[4], 0);
  int64_t four = 0;
  for (int first = 0xE0; first <= 0xFF; ++first) {
    for (int second = 0; second <= 0xFF; ++second) {
      for (const int third : {0x7F, 0x80, 0xBF, 0xC0}) {
        for (const int fourth : {0x7F, 0x80, 0xBF, 0xC0}) {
          text = {static_cast<char>(first), static_cast<char>(second), static_cast<char>(third), static_cast<char>(fourth)};
          four += utf8_length(text, 0) == 4;
        }
      }
    }
  }
  EXPECT_EQ(four, 4 * (0x110000 - 0x10000) / (64 * 64));
}

TEST(Utf8, TheFirstInvalidByteIsFound) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA9\xA9"), 3u);
  EXPECT_EQ(find_invalid_utf8("ab\xE2\x82"), 2u);
}

}  // namespace
}  // namespace galley
