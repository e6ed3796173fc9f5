#pragma once
// The pieces of a template, and the words of an expression.

#include <string>
#include <string_view>
#include <vector>

namespace galley::text::jinja {

/// Text, or what is between {{ }} or {% %}.
struct Piece {
  enum class Kind { kText, kPrint, kStatement };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
};
/// Comments and raw blocks are resolved, and white space is removed, as with trim_blocks and lstrip_blocks. Throws Error (kInput).
std::vector<Piece> split_template(std::string_view source, const std::string& name);

struct Word {
  enum class Kind { kEnd, kName, kText, kInteger, kFloat, kOperator };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;  // of kText: its characters, without quotes and escapes
};
std::vector<Word> split_words(const Piece& piece, const std::string& name);

/// Throws Error (kInput) at NAME:LINE.
[[noreturn]] void fail_at(const std::string& name, int line, const std::string& message);

}  // namespace galley::text::jinja
