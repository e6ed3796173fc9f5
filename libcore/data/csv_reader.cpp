#include "libcore/data/csv_reader.h"

#include "libcore/base/error.h"

namespace galley {

bool CsvReader::next(std::vector<std::string>& fields) {
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) line_ += text_[at_++] == '\n';
  if (at_ >= text_.size()) return false;
  record_line_ = line_;
  fields.clear();
  for (;;) {
    fields.push_back(field());
    if (at_ < text_.size() && text_[at_] == delimiter_) {
      ++at_;
      continue;
    }
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size()) {
      if (text_[at_] != '\n') bad("text after a closing quote");
      ++at_;
      ++line_;
    }
    return true;
  }
}

void CsvReader::bad(const std::string& message) const {
  throw Error(ErrorCode::kInput, message).at({.file = path_, .line = static_cast<int>(record_line_)});
}

std::string CsvReader::field() {
  std::string value;
  if (quoted_ && at_ < text_.size() && text_[at_] == '"') {
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) bad("a quote is not closed");
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      line_ += text_[at_] == '\n';
      value += text_[at_];
    }
    ++at_;
    return value;
  }
  while (at_ < text_.size() && text_[at_] != delimiter_ && text_[at_] != '\n' && text_[at_] != '\r') value += text_[at_++];
  return value;
}

char delimiter_of(const std::string& text, std::string_view source) {
  const char delimiter = text == "\\t" ? '\t' : text.empty() ? '\0' : text[0];
  GALLEY_CHECK(text == "\\t" || (text.size() == 1 && delimiter != '"' && delimiter != '\n' && delimiter != '\r'), "[", source,
               "] delimiter: '", text, "' must be one character");
  return delimiter;
}

}  // namespace galley
