#pragma once
// What the methods, filters and functions of chat templates share: arguments, and functions of text. For jinja_*.cpp.

#include <string>
#include <string_view>

#include "libcore/text/jinja_value.h"

namespace galley::text::jinja {

inline constexpr std::string_view kWhiteSpace = " \t\n\r\f\v";

/// The argument at a position or of a name; throws if it is absent or not a string. `of`: the function, for the message.
const std::string& text_argument(const Arguments& a, size_t position, std::string_view name, std::string_view of);
/// The whole number there, or `missing` if it is absent or none; throws if it is another value.
int64_t number_argument(const Arguments& a, size_t position, std::string_view name, int64_t missing);
/// The truth of the argument there, or `missing`.
bool flag_argument(const Arguments& a, size_t position, std::string_view name, bool missing);

/// The text without characters of `set` at its ends.
std::string stripped(std::string_view text, std::string_view set, bool left, bool right);
/// The characters to strip: the argument chars, or white space.
std::string strip_set(const Arguments& a);
/// Changes ASCII letters only.
std::string lower(const std::string& text);
std::string upper(const std::string& text);
std::string capitalized(const std::string& text);
std::string titled(const std::string& text);
/// The first `count` occurrences replaced; below 0: all.
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t count);
/// Python's str.split.
List split(const std::string& text, const Arguments& a);

}  // namespace galley::text::jinja
