#pragma once
// JsonCursor: reads a JSON text from front to back without building a tree, for annotation files of hundreds of MB. Errors have the file,
// line and column. A pure function over bytes.

#include <cstdint>
#include <string>
#include <string_view>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {

/// A position in a JSON text. The text must outlive the cursor.
class JsonCursor {
 public:
  /// `file`: for messages.
  JsonCursor(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  /// Reads an object: calls member(key) for each member, which must read or skip its value.
  void object(FunctionRef<void(const std::string& key)> member);
  /// Reads an array: calls element(index) for each element, which must read or skip it.
  void array(FunctionRef<void(int64_t index)> element);
  std::string string();
  double number();
  /// A number without a fraction.
  int64_t integer();
  /// true, false, or a number: whether it is not 0.
  bool flag();
  /// Whether the next value begins with this character.
  bool next_is(char first);
  /// Skips a value.
  void skip();
  /// Only white space may follow.
  void end();

  /// The byte at which the next value begins.
  size_t offset();
  /// An error at a byte of the text.
  [[noreturn]] void fail(size_t offset, const std::string& message) const;

 private:
  void skip_space();
  char take(std::string_view expected);
  [[noreturn]] void fail_here(const std::string& message) const { fail(at_, message); }
  uint32_t hex4();
  void escape(std::string& out);
  void enter();

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace galley
