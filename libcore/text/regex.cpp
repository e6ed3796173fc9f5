#include "libcore/text/regex.h"

#include <algorithm>
#include <functional>

#include "libcore/base/error.h"
#include "libcore/text/scanner.h"

#ifdef GALLEY_WITH_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace galley::text {
namespace {

class StringMatcher : public Matcher {
 public:
  explicit StringMatcher(const std::string& text) : text_(text) {}
  bool find(std::string_view text, size_t from, size_t to, Range& match) const override {
    if (text_.empty()) return false;
    const size_t at = text.substr(0, to).find(text_, from);
    if (at == std::string_view::npos) return false;
    match = {static_cast<uint32_t>(at), static_cast<uint32_t>(at + text_.size())};
    return true;
  }

 private:
  std::string text_;
};

class ScanMatcher : public Matcher {
 public:
  explicit ScanMatcher(Scan scan) : scan_(scan) {}
  bool find(std::string_view text, size_t from, size_t to, Range& match) const override {
    if (from >= to) return false;
    const char* end = scan_(text.data() + from, text.data() + to);
    match = {static_cast<uint32_t>(from), static_cast<uint32_t>(end - text.data())};
    return true;
  }

 private:
  Scan scan_;
};

#ifdef GALLEY_WITH_PCRE2

/// Spells out the classes that PCRE2 and Oniguruma, for which the files were written, understand differently: PCRE2's \s holds U+180E, and
/// its \w no marks. What they exclude cannot be spelled inside brackets, and stays.
std::string with_exact_classes(const std::string& pattern) {
  constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
  constexpr std::string_view kWords = R"(\p{L}\p{M}\p{N}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      const bool lower = escaped == 's' || escaped == 'w', upper = escaped == 'S' || escaped == 'W';
      const std::string_view members = escaped == 's' || escaped == 'S' ? kSpaces : kWords;
      if (lower && in_class) {
        out += members;
      } else if (lower || (upper && !in_class)) {
        out += cat(upper ? "[^" : "[", members, "]");
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

class RegexMatcher : public Matcher {
 public:
  explicit RegexMatcher(const std::string& pattern) : pattern_(pattern), code_(nullptr, pcre2_code_free_8) {
    const std::string exact = with_exact_classes(pattern);
    int error = 0;
    size_t place = 0;
    // Oniguruma's Ruby syntax, for which the files were written: ^ and $ at every line.
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(exact.data()), exact.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error,
                                &place, nullptr));
    GALLEY_CHECK_INPUT(code_, "the regular expression '", pattern, "' is not valid: ", message(error));
    pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);
  }
  bool find(std::string_view text, size_t from, size_t to, Range& match) const override {
    const std::unique_ptr<pcre2_match_data_8, void (*)(pcre2_match_data_8*)> data(
        pcre2_match_data_create_from_pattern_8(code_.get(), nullptr), pcre2_match_data_free_8);
    const int result = pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), to, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                     data.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    GALLEY_CHECK_INPUT(result >= 0, "the regular expression '", pattern_, "' failed: ", message(result));
    const size_t* ends = pcre2_get_ovector_pointer_8(data.get());
    match = {static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1])};
    return true;
  }

 private:
  static std::string message(int error) {
    PCRE2_UCHAR8 buffer[256] = {};
    pcre2_get_error_message_8(error, buffer, sizeof buffer);
    return reinterpret_cast<const char*>(buffer);
  }
  std::string pattern_;
  std::unique_ptr<pcre2_code_8, void (*)(pcre2_code_8*)> code_;
};

#endif

}  // namespace

std::shared_ptr<const Matcher> string_matcher(const std::string& text) { return std::make_shared<StringMatcher>(text); }

std::shared_ptr<const Matcher> regex_matcher(const std::string& pattern) {
  if (const KnownPattern* known = find_pattern(pattern)) return std::make_shared<ScanMatcher>(known->scan);
#ifdef GALLEY_WITH_PCRE2
  return std::make_shared<RegexMatcher>(pattern);
#else
  std::string names;
  for (const std::string& name : pattern_names()) names += (names.empty() ? "" : ", ") + name;
  fail(ErrorCode::kInput, "the pattern '", pattern, "' is none of those known (", names,
       "), and this build has no regular expressions: install libpcre2-dev and build again");
#endif
}

}  // namespace galley::text
