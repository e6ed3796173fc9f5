#pragma once
// What galley-predict prints of each file: its classes with scores, or why it could not be read.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/common/report.h"

namespace galley::tools {

/// A class of one sample. score: softmax, 0 to 1.
struct RankedClass {
  int64_t index = 0;
  double score = 0;
  std::string label;

  std::string score_text() const;
};

class Listing {
 public:
  /// `provenance` goes into every JSON line. `repeat_file`: each row of the table names its file, not only the first of a file.
  Listing(nlohmann::ordered_json provenance, bool repeat_file) : provenance_(std::move(provenance)), repeat_file_(repeat_file) {}

  /// A file that was predicted, best class first. `note`: what is wrong with the file all the same, or "".
  void add(const std::string& file, const std::vector<RankedClass>& top, const std::string& note);
  /// A file that could not be read.
  void add_unreadable(const std::string& file, const std::string& message);

  int64_t unreadable() const { return unreadable_; }
  /// One JSON object a file, one a line.
  const std::string& lines() const { return lines_; }
  /// A row a class; the column `error` stands there where a file could not be read.
  Table table() const;

 private:
  void add_line(nlohmann::ordered_json line);

  nlohmann::ordered_json provenance_;
  bool repeat_file_;
  int64_t unreadable_ = 0;
  std::string lines_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace galley::tools
