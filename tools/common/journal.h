#pragma once
// A journal of finished work, one JSON object per line, so that an interrupted command can continue.

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace galley::tools {

class Journal {
 public:
  /// Reads the existing entries; a truncated last line is ignored. `command` identifies the settings that the results depend on; a journal
  /// with other settings or an unreadable file throws Error (kInput). An empty path disables the journal.
  Journal(std::string path, std::string command);
  /// Throws Error (kResource) if the file cannot be written; to be called before the work. Creates an empty file if there is none.
  void check() const;
  /// The value for that key, or nullptr.
  const nlohmann::ordered_json* find(const std::string& key) const;
  /// Appends an entry. Throws Error (kResource) if the file cannot be written.
  void add(const std::string& key, const nlohmann::ordered_json& value);
  size_t size() const { return values_.size(); }

 private:
  std::string path_, command_;
  std::map<std::string, nlohmann::ordered_json> values_;
};

}  // namespace galley::tools
