#pragma once
// What tokenizers ask about characters, by utf8proc's tables (2.8: Unicode 15.0): classes as one byte a code point, case, normal forms, and
// GPT-2's spelling of bytes as printable characters. Code points that a newer Unicode assigned count as unassigned.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley::text {

/// Bits of a character's class.
enum ClassBit : uint8_t {
  kLetter = 1,         ///< \p{L}
  kNumber = 2,         ///< \p{N}
  kSpace = 4,          ///< \s: White_Space. U+0085 is, U+200B and U+180E are not.
  kNewline = 8,        ///< \r and \n, which are kSpace too.
  kUpper = 16,         ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLower = 32,         ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  kWord = 64,          ///< \w of the Unicode regular expressions: alphabetic, marks, decimal digits, connectors, joiners
  kPunctuation = 128,  ///< \p{P}
};

/// Classes of all code points in two stages: blocks of 128, of which equal ones are stored once.
class ClassTable {
 public:
  static const ClassTable& get();
  uint8_t operator[](uint32_t c) const { return c < 0x110000 ? blocks_[size_t{index_[c >> 7]} << 7 | (c & 127)] : 0; }
  uint8_t ascii(uint8_t c) const { return blocks_[c]; }  ///< c < 128

 private:
  ClassTable();
  std::array<uint16_t, 0x110000 / 128> index_{};
  std::vector<uint8_t> blocks_;
};

inline bool is_white_space(uint32_t c) { return ClassTable::get()[c] & kSpace; }

/// Length of the character at `p` by its first byte, in valid UTF-8.
inline size_t char_length(const char* p) {
  const auto first = static_cast<uint8_t>(*p);
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}
/// The character at `p` of valid UTF-8, which moves past it.
inline uint32_t next_char(const char*& p) {
  const auto byte = [&p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t first = byte(0);
  uint32_t c = first;
  if (first < 0x80) {
    p += 1;
  } else if (first < 0xE0) {
    c = (first & 31) << 6 | (byte(1) & 63);
    p += 2;
  } else if (first < 0xF0) {
    c = (first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    p += 3;
  } else {
    c = (first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
    p += 4;
  }
  return c;
}
void append_utf8(std::string& text, uint32_t c);

/// Throws (kInput) "NAME:LINE:COLUMN: ..." at the first byte that is not UTF-8.
void check_utf8(std::string_view text, std::string_view name);
/// Valid UTF-8: each maximal part that is none is one U+FFFD, as the WHATWG's decoder and Python's errors="replace" do it.
std::string replace_invalid_utf8(std::string_view text);
/// How many bytes at the end begin a character that more bytes could complete (0 to 3).
size_t unfinished_utf8(std::string_view text);

bool is_mark(uint32_t c);             ///< \p{M}
bool is_nonspacing_mark(uint32_t c);  ///< \p{Mn}
bool is_other(uint32_t c);            ///< \p{C}: control, format, private use, unassigned
/// Lower case of one character, as Unicode's SpecialCasing has it without context: U+0130 becomes two characters.
void append_lowercase(std::string& text, uint32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
/// Divides valid UTF-8 into parts that normalize on their own.
class NormalForms {
 public:
  static const NormalForms& get(NormalForm form);
  /// Whether the whole text is its own normal form, as far as single characters show.
  bool unchanged(std::string_view text) const;
  /// The end of the part that begins at `at`, and its normal form in `out`.
  size_t next(std::string_view text, size_t at, std::string& out) const;

 private:
  explicit NormalForms(NormalForm form);
  NormalForm form_;
  std::vector<uint8_t> flags_;  // A byte a code point: kBoundary, kStable.
};

/// GPT-2's spelling of bytes: printable Latin-1 as itself, the others from U+0100 on.
uint32_t byte_character(uint8_t byte);
/// Appends the spelling of bytes.
void append_byte_characters(std::string& text, std::string_view bytes);
/// The bytes that a piece spells; false if one of its characters spells none, `bytes` is then unspecified.
bool bytes_of_piece(std::string_view piece, std::string& bytes);

}  // namespace galley::text
