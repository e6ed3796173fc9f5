#include "libcore/text/jinja_lex.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "libcore/base/error.h"
#include "libcore/base/trimmed.h"
#include "libcore/text/unicode.h"

namespace galley::text::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\f\v";

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80; }

/// With "\n" for every end of line, without the last one.
std::string normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Splitter {
 public:
  Splitter(std::string_view source, const std::string& name) : source_(normalized(source)), name_(name) {}

  std::vector<Piece> run() {
    while (at_ < source_.size()) {
      const size_t open = next_open();
      if (open == std::string::npos) {
        add_text(source_.substr(at_));
        break;
      }
      tag(open);
    }
    return std::move(pieces_);
  }

 private:
  size_t next_open() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return std::string::npos;
  }

  /// The text before a tag, without what the tag's sign or lstrip_blocks removes.
  void text_before(size_t open, char kind, char sign) {
    std::string text = source_.substr(at_, open - at_);
    if (sign == '-') {
      while (!text.empty() && is_space(text.back())) text.pop_back();
    } else if (sign != '+' && kind != '{') {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == std::string::npos ? 0 : newline + 1;
      const bool starts_line = newline != std::string::npos || line_starts_;
      if (starts_line && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_space)) text.resize(begin);
    }
    add_text(text);
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_), source_.begin() + static_cast<std::ptrdiff_t>(open), '\n'));
  }

  void tag(size_t open) {
    const char kind = source_[open + 1];
    size_t begin = open + 2;
    const char sign = begin < source_.size() && (source_[begin] == '-' || source_[begin] == '+') ? source_[begin] : ' ';
    text_before(open, kind, sign);
    if (sign != ' ') ++begin;
    size_t end = end_of(begin, kind);
    if (end == std::string::npos)
      fail_at(name_, line_, cat("'{", std::string(1, kind), "' has no end '", kind == '{' ? "}" : std::string(1, kind), "}'"));
    size_t after = end + 2;
    const char last = end > begin && (source_[end - 1] == '-' || (source_[end - 1] == '+' && kind != '{')) ? source_[end - 1] : ' ';
    if (last != ' ') --end;
    const std::string inside = source_.substr(begin, end - begin);
    after = skip_after(after, kind, last);
    if (kind == '%' && trimmed(inside, kSpaces) == "raw") return raw(open, after);
    if (kind != '#') pieces_.push_back({kind == '{' ? Piece::Kind::kPrint : Piece::Kind::kStatement, line_, inside});
    advance(open, after);
  }

  /// What a tag's end removes of the text after it.
  size_t skip_after(size_t after, char kind, char last) const {
    if (last == '-') {
      while (after < source_.size() && is_space(source_[after])) ++after;
    } else if (last != '+' && kind != '{' && after < source_.size() && source_[after] == '\n') {
      ++after;
    }
    return after;
  }
  void advance(size_t open, size_t after) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<std::ptrdiff_t>(open), source_.begin() + static_cast<std::ptrdiff_t>(after), '\n'));
    line_starts_ = after > 0 && source_[after - 1] == '\n';
    at_ = after;
  }

  /// Everything up to {% endraw %} is text.
  void raw(size_t open, size_t begin) {
    for (size_t i = begin; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{' || source_[i + 1] != '%') continue;
      const size_t end = source_.find("%}", i);
      if (end == std::string::npos) break;
      std::string_view inside = std::string_view(source_).substr(i + 2, end - i - 2);
      char sign = ' ', last = ' ';
      if (!inside.empty() && (inside.front() == '-' || inside.front() == '+')) sign = inside.front(), inside.remove_prefix(1);
      if (!inside.empty() && (inside.back() == '-' || inside.back() == '+')) last = inside.back(), inside.remove_suffix(1);
      if (trimmed(inside, kSpaces) != "endraw") continue;
      advance(open, begin);
      text_before(i, '%', sign);
      at_ = i;
      return advance(i, skip_after(end + 2, '%', last));
    }
    fail_at(name_, line_, "{% raw %} has no {% endraw %}");
  }

  /// The end mark of a tag, outside of quotes.
  size_t end_of(size_t begin, char kind) const {
    const char first = kind == '{' ? '}' : kind;
    char quote = 0;
    int depth = 0;  // of braces of dictionaries
    for (size_t i = begin; i + 1 < source_.size(); ++i) {
      const char c = source_[i];
      if (kind != '#') {
        if (quote != 0) {
          if (c == '\\') ++i;
          if (c == quote) quote = 0;
          continue;
        }
        if (c == '\'' || c == '"') {
          quote = c;
          continue;
        }
        if (c == '{') ++depth;
        if (c == '}' && depth > 0) {
          --depth;
          continue;
        }
      }
      if (c == first && source_[i + 1] == '}') return i;
    }
    return std::string::npos;
  }

  void add_text(const std::string& text) {
    if (!text.empty()) pieces_.push_back({Piece::Kind::kText, line_, text});
  }

  std::string source_;
  const std::string& name_;
  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

void fail_at(const std::string& name, int line, const std::string& message) { throw Error(ErrorCode::kInput, message).at({name, line, 0}); }

std::vector<Piece> split_template(std::string_view source, const std::string& name) { return Splitter(source, name).run(); }

namespace {

/// Appends the character that follows \x, \u or \U as 2, 4 or 8 hexadecimal digits; returns how many these are.
size_t append_code_point(std::string& result, std::string_view rest, char kind, const std::string& name, int line) {
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
  uint32_t code = 0;
  const char* end = rest.data() + std::min(digits, rest.size());
  const auto [stop, error] = std::from_chars(rest.data(), end, code, 16);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (rest.size() < digits || error != std::errc() || stop != end || surrogate || code > 0x10ffff)
    fail_at(name, line, cat("the escape '\\", std::string(1, kind), "' needs ", digits, " hexadecimal digits of a character"));
  append_utf8(result, code);
  return digits;
}

/// The characters of a text in quotes at words[begin]; `end` is set to the place after it.
std::string unquoted(const std::string& text, size_t begin, size_t& end, const std::string& name, int line) {
  const char quote = text[begin];
  std::string result;
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      end = i + 1;
      return result;
    }
    if (text[i] != '\\' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    const char c = text[++i];
    switch (c) {
      case 'n': result += '\n'; break;
      case 't': result += '\t'; break;
      case 'r': result += '\r'; break;
      case 'f': result += '\f'; break;
      case 'v': result += '\v'; break;
      case 'b': result += '\b'; break;
      case 'a': result += '\a'; break;
      case '\n': break;
      case '\\':
      case '\'':
      case '"': result += c; break;
      case 'x':
      case 'u':
      case 'U': i += append_code_point(result, std::string_view(text).substr(i + 1), c, name, line); break;
      case 'N':
      case '0': fail_at(name, line, cat("the escape '\\", std::string(1, c), "' in a text is not supported"));
      default: result += '\\', result += c;
    }
  }
  fail_at(name, line, "a text has no closing quote");
}

/// The length of the number at text[begin]; `real` is set if the number has a fraction or an exponent.
size_t number_length(const std::string& text, size_t begin, bool& real) {
  size_t i = begin;
  const auto digits = [&] {
    while (i < text.size() && (is_digit(text[i]) || (text[i] == '_' && i + 1 < text.size() && is_digit(text[i + 1])))) ++i;
  };
  digits();
  if (i + 1 < text.size() && text[i] == '.' && is_digit(text[i + 1])) {
    real = true;
    ++i;
    digits();
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    size_t next = i + 1;
    if (next < text.size() && (text[next] == '+' || text[next] == '-')) ++next;
    if (next < text.size() && is_digit(text[next])) {
      real = true;
      i = next;
      digits();
    }
  }
  return i - begin;
}

}  // namespace

std::vector<Word> split_words(const Piece& piece, const std::string& name) {
  static constexpr std::array<std::string_view, 7> kPairs{"==", "!=", "<=", ">=", "//", "**", "->"};
  const std::string& text = piece.text;
  std::vector<Word> words;
  int line = piece.line;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (is_space(c)) {
      line += c == '\n';
      ++i;
      continue;
    }
    size_t end = i + 1;
    Word word{.kind = Word::Kind::kOperator, .line = line, .text = {}};
    if (c == '\'' || c == '"') {
      word.kind = Word::Kind::kText;
      word.text = unquoted(text, i, end, name, line);
      line += static_cast<int>(
          std::count(text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    } else if (is_digit(c)) {
      bool real = false;
      end = i + number_length(text, i, real);
      word.kind = real ? Word::Kind::kFloat : Word::Kind::kInteger;
      word.text = text.substr(i, end - i);
      std::erase(word.text, '_');
    } else if (is_letter(c)) {
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]))) ++end;
      word.kind = Word::Kind::kName;
      word.text = text.substr(i, end - i);
    } else {
      const std::string_view two = std::string_view(text).substr(i, 2);
      if (std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end()) ++end;
      word.text = text.substr(i, end - i);
      if (end == i + 1 && std::string_view("+-*/%~<>=()[]{},.:|").find(c) == std::string_view::npos)
        fail_at(name, line, cat("unexpected character '", word.text, "'"));
    }
    words.push_back(std::move(word));
    i = end;
  }
  words.push_back({.kind = Word::Kind::kEnd, .line = line, .text = "the tag's end"});
  return words;
}

}  // namespace galley::text::jinja
