#pragma once
// Patterns that are not among the known ones of scanner.h: fixed strings, and regular expressions where PCRE2 was found at build time.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "libcore/text/buffer.h"

namespace galley::text {

class Matcher {
 public:
  virtual ~Matcher() = default;
  /// The first match in text[from, to) at or after `from`; nothing outside is seen. False if there is none. Empty matches do not count.
  virtual bool find(std::string_view text, size_t from, size_t to, Range& match) const = 0;
};

std::shared_ptr<const Matcher> string_matcher(const std::string& text);
/// Pieces of a known pattern are its matches; another pattern is compiled by PCRE2. Throws (kInput), with the pattern, if PCRE2 is not part
/// of this build or refuses it.
std::shared_ptr<const Matcher> regex_matcher(const std::string& pattern);

}  // namespace galley::text
