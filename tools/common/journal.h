#pragma once
// A journal of finished pieces of work, a JSON object a line, so that an interrupted command goes on where it was.

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace galley::tools {

class Journal {
 public:
  /// Reads what is there; a last line that was cut off is dropped. `command` stands for the settings that the work depends on: a journal
  /// of others, or a file that cannot be read, is an Error (kInput). An empty path: nothing is kept.
  Journal(std::string path, std::string command);
  /// Throws (kResource) where nothing could be noted: before the work. Makes an empty file where there is none.
  void check() const;
  /// What was noted under that key, or nullptr.
  const nlohmann::ordered_json* find(const std::string& key) const;
  /// Notes it. Throws (kResource) where the file cannot be written.
  void add(const std::string& key, const nlohmann::ordered_json& value);
  size_t size() const { return values_.size(); }

 private:
  std::string path_, command_;
  std::map<std::string, nlohmann::ordered_json> values_;
};

}  // namespace galley::tools
