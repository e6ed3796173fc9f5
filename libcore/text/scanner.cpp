#include "libcore/text/scanner.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "libcore/base/error.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

constexpr uint8_t kAnyClass = kLetter | kNumber | kSpace;  // None of them: "other", [^\s\p{L}\p{N}].

/// Classes of the characters at a position.
class Reader {
 public:
  Reader() : table_(ClassTable::get()) {}
  /// The class of the character at `p`; `next` is its end.
  uint8_t at(const char* p, const char*& next) const {
    const auto first = static_cast<uint8_t>(*p);
    if (first < 0x80) {
      next = p + 1;
      return table_.ascii(first);
    }
    next = p;
    return table_[next_char(next)];
  }
  /// The end of the run of characters from `p` that have one of the bits.
  const char* run(const char* p, const char* end, uint8_t bits) const {
    const char* next = p;
    while (p < end && (at(p, next) & bits)) p = next;
    return p;
  }
  const char* run_other(const char* p, const char* end) const {
    const char* next = p;
    while (p < end && !(at(p, next) & kAnyClass)) p = next;
    return p;
  }
  /// At most `limit` numbers.
  const char* numbers(const char* p, const char* end, int limit) const {
    const char* next = p;
    while (p < end && limit-- > 0 && (at(p, next) & kNumber)) p = next;
    return p;
  }

 private:
  const ClassTable& table_;
};

const Reader& reader() {
  static const Reader reader;
  return reader;
}

/// The end of an English ending ('s 't 're 've 'm 'll 'd) at `p`, or `p`. Without regard to case, 's is also an apostrophe and U+017F (long
/// s).
template <bool kAnyCase>
const char* ending(const char* p, const char* end) {
  if (end - p < 2 || *p != '\'') return p;
  const auto lower = [](char c) { return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char a = lower(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return p;
  if (kAnyCase && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  const char b = lower(p[2]);
  return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? p + 3 : p;
}

/// \s+(?!\S)|\s+: a run of white space leaves its last character to what follows, unless it has only one.
const char* spaces_before_text(const char* p, const char* end) {
  const Reader& classes = reader();
  const char *last = p, *q = p, *next = p;
  while (q < end && (classes.at(q, next) & kSpace)) {
    last = q;
    q = next;
  }
  return q == end || last == p ? q : last;
}

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* scan_gpt2(const char* p, const char* end) {
  const Reader& classes = reader();
  if (const char* q = ending<false>(p, end); q != p) return q;
  const char* next = p;
  uint8_t kind = classes.at(p, next);
  if (*p == ' ' && next < end) {
    const char* after = next;
    if (const uint8_t following = classes.at(next, after); !(following & kSpace)) {
      kind = following;
      next = after;
    }
  }
  if (kind & kLetter) return classes.run(next, end, kLetter);
  if (kind & kNumber) return classes.run(next, end, kNumber);
  if (kind & kSpace) return spaces_before_text(p, end);
  return classes.run_other(next, end);
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n]*` (with kSlash: [\r\n/]*), or `p`.
template <bool kSlash>
const char* punctuation(const char* p, const char* end) {
  const Reader& classes = reader();
  const char* q = p + (*p == ' ');
  const char* past = classes.run_other(q, end);
  if (past == q) return p;
  while (past < end && (*past == '\r' || *past == '\n' || (kSlash && *past == '/'))) ++past;
  return past;
}

/// \s*[\r\n]+|\s+(?!\S)|\s+ (with kTail, \s+$ before them): up to the last line end of the run, else as spaces_before_text.
template <bool kTail>
const char* spaces_with_lines(const char* p, const char* end) {
  const Reader& classes = reader();
  const char *line = nullptr, *last = p, *q = p, *next = p;
  while (q < end) {
    const uint8_t kind = classes.at(q, next);
    if (!(kind & kSpace)) break;
    last = q;
    q = next;
    if (kind & kNewline) line = q;
  }
  if (kTail && q == end) return q;
  if (line) return line;
  return q == end || last == p ? q : last;
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,kDigits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <int kDigits, bool kTail>
const char* scan_cl100k(const char* p, const char* end) {
  const Reader& classes = reader();
  if (const char* q = ending<true>(p, end); q != p) return q;
  const char* next = p;
  const uint8_t kind = classes.at(p, next);
  if (kind & kLetter) return classes.run(next, end, kLetter);
  if (kind & kNumber) return classes.numbers(next, end, kDigits - 1);
  if (!(kind & kNewline)) {
    if (const char* q = classes.run(next, end, kLetter); q != next) return q;
  }
  if (const char* q = punctuation<false>(p, end); q != p) return q;
  return spaces_with_lines<kTail>(p, end);
}

/// Matches [upper]*[lower]+|[upper]+[lower]* at `p`, where letters without case and marks are both: the end of the first alternative with
/// the backtracking of a regular expression, else of the second, else `p`.
const char* cased_word(const char* p, const char* end) {
  const Reader& classes = reader();
  const char *q = p, *next = p, *after_lower = nullptr;
  while (q < end) {
    const uint8_t kind = classes.at(q, next);
    if (!(kind & kUpper)) break;
    q = next;
    if (kind & kLower) after_lower = q;
  }
  if (const char* r = classes.run(q, end, kLower); r != q) return r;
  return after_lower ? after_lower : q;
}

/// [^\r\n\p{L}\p{N}]?[upper]*[lower]+ENDING?|[^\r\n\p{L}\p{N}]?[upper]+[lower]*ENDING?|\p{N}{1,kDigits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+
template <int kDigits, bool kEnding>
const char* scan_o200k(const char* p, const char* end) {
  const Reader& classes = reader();
  const char* next = p;
  const uint8_t kind = classes.at(p, next);
  if (kind & kNumber) return classes.numbers(next, end, kDigits - 1);
  if (!(kind & kNewline)) {
    const char* word = kind & kLetter ? p : next;
    const char* q = cased_word(word, end);
    if (q == word && word != p) q = cased_word(word = p, end);  // A mark that no letter follows is a word.
    if (q != word) return kEnding ? ending<true>(q, end) : q;
  }
  if (const char* q = punctuation<true>(p, end); q != p) return q;
  return spaces_with_lines<false>(p, end);
}

#define GALLEY_WORD_ENDING "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GALLEY_UPPER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define GALLEY_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define GALLEY_SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr std::array<KnownPattern, 12> kPatterns{{
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", scan_gpt2},
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", scan_gpt2},
    {"gpt2", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", scan_gpt2},
    {"gpt2", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", scan_gpt2},
    {"llama3", GALLEY_WORD_ENDING R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" GALLEY_SPACES,
     scan_cl100k<3, false>},
    {"qwen2", GALLEY_WORD_ENDING R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" GALLEY_SPACES, scan_cl100k<1, false>},
    {"cl100k", R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     scan_cl100k<3, true>},
    {"cl100k", R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     scan_cl100k<3, false>},
    {"o200k",
     GALLEY_UPPER "*" GALLEY_LOWER "+" GALLEY_WORD_ENDING "?|" GALLEY_UPPER "+" GALLEY_LOWER "*" GALLEY_WORD_ENDING
                  R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" GALLEY_SPACES,
     scan_o200k<3, true>},
    {"tekken", GALLEY_UPPER "*" GALLEY_LOWER "+|" GALLEY_UPPER "+" GALLEY_LOWER R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" GALLEY_SPACES,
     scan_o200k<1, false>},
    {"tekken3",
     GALLEY_UPPER "*" GALLEY_LOWER "+|" GALLEY_UPPER "+" GALLEY_LOWER R"(*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" GALLEY_SPACES,
     scan_o200k<3, false>},
    {"llama3", R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" GALLEY_SPACES,
     scan_cl100k<3, false>},
}};

}  // namespace

std::span<const KnownPattern> known_patterns() { return kPatterns; }

const KnownPattern* find_pattern(std::string_view text) {
  for (const KnownPattern& pattern : kPatterns) {
    if (pattern.text == text) return &pattern;
  }
  return nullptr;
}

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const KnownPattern& pattern : kPatterns) {
    if (std::find(names.begin(), names.end(), pattern.name) == names.end()) names.emplace_back(pattern.name);
  }
  return names;
}

const KnownPattern& pattern_named(std::string_view name) {
  for (const KnownPattern& pattern : kPatterns) {
    if (pattern.name == name) return pattern;
  }
  std::string names;
  for (const std::string& known : pattern_names()) names += (names.empty() ? "" : ", ") + known;
  fail(ErrorCode::kInput, "unknown pre-tokenization '", name, "': known are ", names);
}

}  // namespace galley::text
