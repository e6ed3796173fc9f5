#include "libcore/data/json_cursor.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace galley {
namespace {

constexpr int kMaxDepth = 64;

/// Appends a code point as UTF-8.
void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
            static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

}  // namespace

void JsonCursor::fail(size_t offset, const std::string& message) const {
  const std::string_view before = text_.substr(0, std::min(offset, text_.size()));
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  throw Error(ErrorCode::kInput, message)
      .at({.file = file_,
           .line = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
           .column = 1 + static_cast<int>(before.size() - line_start)});
}

void JsonCursor::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
}

size_t JsonCursor::offset() {
  skip_space();
  return at_;
}

bool JsonCursor::next_is(char first) {
  skip_space();
  return at_ < text_.size() && text_[at_] == first;
}

/// Takes one of the expected characters.
char JsonCursor::take(std::string_view expected) {
  skip_space();
  if (at_ >= text_.size()) fail_here(cat("the file ends where '", expected.front(), "' should follow"));
  if (expected.find(text_[at_]) == std::string_view::npos) {
    std::string wanted;
    for (const char c : expected) wanted += cat(wanted.empty() ? "'" : " or '", c, "'");
    fail_here(cat("expected ", wanted));
  }
  return text_[at_++];
}

void JsonCursor::enter() {
  if (++depth_ > kMaxDepth) fail_here(cat("more than ", kMaxDepth, " values inside each other"));
}

void JsonCursor::object(FunctionRef<void(const std::string& key)> member) {
  take("{");
  enter();
  if (next_is('}')) {
    ++at_;
  } else {
    do {
      const std::string key = string();
      take(":");
      member(key);
    } while (take(",}") == ',');
  }
  --depth_;
}

void JsonCursor::array(FunctionRef<void(int64_t index)> element) {
  take("[");
  enter();
  if (next_is(']')) {
    ++at_;
  } else {
    int64_t index = 0;
    do {
      element(index++);
    } while (take(",]") == ',');
  }
  --depth_;
}

uint32_t JsonCursor::hex4() {
  uint32_t value = 0;
  if (text_.size() - at_ < 4) fail_here("the file ends inside \\u");
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, value, 16);
  if (error != std::errc() || end != text_.data() + at_ + 4) fail_here("\\u needs four hexadecimal digits");
  at_ += 4;
  return value;
}

/// Reads the part of an escape sequence after its backslash.
void JsonCursor::escape(std::string& out) {
  if (at_ >= text_.size()) fail_here("the file ends inside a string");
  const char kind = text_[at_++];
  constexpr std::string_view kKinds = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  const size_t found = kKinds.find(kind);
  if (found != std::string_view::npos) {
    out += kValues[found];
    return;
  }
  if (kind != 'u') fail(at_ - 1, cat("unknown escape '\\", kind, "'"));
  uint32_t code = hex4();
  if (code >= 0xD800 && code < 0xDC00) {
    if (!text_.substr(at_).starts_with("\\u")) fail_here("a surrogate without its second half");
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail_here("a surrogate without its second half");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    fail_here("a surrogate without its first half");
  }
  append_utf8(out, code);
}

std::string JsonCursor::string() {
  take("\"");
  std::string out;
  while (true) {
    const size_t end = text_.find_first_of("\"\\\n", at_);
    if (end == std::string_view::npos || text_[end] == '\n') fail_here("a string without an end");
    out.append(text_.substr(at_, end - at_));
    at_ = end + 1;
    if (text_[end] == '"') return out;
    escape(out);
  }
}

double JsonCursor::number() {
  skip_space();
  double value = 0;
  const char* begin = text_.data() + at_;
  const char* end = text_.data() + text_.size();
  const bool starts = begin != end && (*begin == '-' || (*begin >= '0' && *begin <= '9'));
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (!starts || error != std::errc() || !std::isfinite(value)) fail_here("expected a number");
  at_ += static_cast<size_t>(stop - begin);
  return value;
}

int64_t JsonCursor::integer() {
  const size_t start = offset();
  const double value = number();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value != std::floor(value) || std::abs(value) > kExact) fail(start, cat("expected an integer, not ", value));
  return static_cast<int64_t>(value);
}

bool JsonCursor::flag() {
  skip_space();
  for (const std::string_view word : {"true", "false"}) {
    if (!text_.substr(at_).starts_with(word)) continue;
    at_ += word.size();
    return word == "true";
  }
  return number() != 0;
}

void JsonCursor::skip() {
  skip_space();
  if (at_ >= text_.size()) fail_here("the file ends where a value should follow");
  const auto next = [this](const auto&) { skip(); };
  switch (text_[at_]) {
    case '{': return object(next);
    case '[': return array(next);
    case '"': static_cast<void>(string()); return;
    case 't':
    case 'f': static_cast<void>(flag()); return;
    case 'n':
      if (!text_.substr(at_).starts_with("null")) fail_here("expected a value");
      at_ += 4;
      return;
    default: static_cast<void>(number());
  }
}

void JsonCursor::end() {
  skip_space();
  if (at_ != text_.size()) fail_here("the file goes on after its value");
}

}  // namespace galley
