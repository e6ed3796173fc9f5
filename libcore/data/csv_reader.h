#pragma once
// Splits the text of a table into records of fields.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// RFC 4180 with any delimiter: quoted fields may contain delimiters, line ends and doubled quotes.
class CsvReader {
 public:
  /// `quoted` false: quotes are ordinary characters. `path` names the file in messages and must outlive the reader, as `text`.
  CsvReader(std::string_view text, char delimiter, const std::string& path, bool quoted = true)
      : text_(text), delimiter_(delimiter), quoted_(quoted), path_(path) {}

  /// Reads the next record; false at the end. Skips empty lines. Throws Error (kInput) with the line.
  bool next(std::vector<std::string>& fields);
  /// Line of the last record, counted from 1.
  int64_t line() const { return record_line_; }
  /// Throws that the last record is not valid.
  [[noreturn]] void bad(const std::string& message) const;

 private:
  std::string field();

  std::string_view text_;
  char delimiter_;
  bool quoted_;
  const std::string& path_;
  size_t at_ = 0;
  int64_t line_ = 1, record_line_ = 1;
};

/// The character of an option `delimiter`: "\t" is a tab. Throws Error (kRecipe), naming the source, for anything but one
/// character.
char delimiter_of(const std::string& text, std::string_view source);

}  // namespace galley
