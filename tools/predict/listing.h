#pragma once
// What galley-predict prints of each file: what the task's presenter makes of its results, or why it could not be read.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libcore/data/pipeline.h"
#include "libcore/data/source.h"
#include "libcore/tasks/task.h"
#include "tools/common/report.h"
#include "tools/predict/draw.h"

namespace galley::tools {

/// A table and lines of JSON, and annotated images where a folder for them is given.
class Listing {
 public:
  /// `presenter` may be null: then files that could not be read are all that is listed. `provenance` goes into every JSON line.
  /// `repeat_file`: each row of the table names its file, not only the first of a file.
  Listing(const Presenter* presenter, bool repeat_file, nlohmann::ordered_json provenance);

  /// From now on add() writes annotated images of samples of `source` to `folder`. Throws Error (kUsage) if one would replace a file of
  /// them.
  void draw_into(std::string folder, DrawFormat format, const Source& source);
  /// From now on each line of JSON goes to `take` as soon as it is made.
  void give_lines_to(std::function<void(const std::string&)> take) { take_line_ = std::move(take); }
  bool gives_lines() const { return take_line_ != nullptr; }
  /// What happens to samples before the model takes them.
  void place_by(Pipeline pipeline);

  /// A sample that was predicted; `results` are its rows by name. `note`: what is wrong with its file although it was read in full, or "".
  void add(const Source& source, int64_t index, const std::map<std::string, Tensor>& results, const std::string& note);
  /// A file that could not be read.
  void add_unreadable(const std::string& file, const std::string& message);

  bool presents() const { return presenter_ != nullptr; }
  int64_t unreadable() const { return unreadable_; }
  /// One JSON object per file, each on its own line.
  const std::string& lines() const { return lines_; }
  /// The presenter's columns; the column `error` is there where a file could not be read.
  Table table() const;

 private:
  void add_line(nlohmann::ordered_json line);
  void draw(const std::string& sample, const Image& image, const Presentation& shown, nlohmann::ordered_json& json);

  const Presenter* presenter_;
  std::string folder_;  // "": nothing is drawn
  DrawFormat format_ = DrawFormat::kPng;
  std::optional<Pipeline> pipeline_;
  bool repeat_file_;
  nlohmann::ordered_json provenance_;
  std::vector<std::string> headings_{"file"};
  std::vector<std::vector<std::string>> rows_;
  std::string lines_;
  std::function<void(const std::string&)> take_line_;
  std::set<std::string> drawn_;
  int64_t unreadable_ = 0;
};

}  // namespace galley::tools
