#include "tools/common/journal.h"

#include <fstream>

#include "libcore/base/error.h"
#include "libcore/base/file.h"

namespace galley::tools {

using Json = nlohmann::ordered_json;

Journal::Journal(std::string path, std::string command) : path_(std::move(path)), command_(std::move(command)) {
  if (path_.empty() || !file_exists(path_)) return;
  std::ifstream file(path_);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    // A folder can be opened but reads as empty.
    if (!file.is_open() || is_folder(path_))
      throw Error(ErrorCode::kInput, cat("cannot read the journal ", path_)).suggest("choose another file with -o");
    return;
  }
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("command") || !json.contains("key") || !json["key"].is_string() || !json.contains("value"))
      continue;
    if (json["command"] != command_) {
      throw Error(ErrorCode::kInput, cat(path_, " is a journal with other settings")).suggest("choose another file or remove it");
    }
    values_.insert_or_assign(json["key"].get<std::string>(), std::move(json["value"]));
  }
}

[[noreturn]] static void fail_write(const std::string& path) {
  throw Error(ErrorCode::kResource, cat("cannot write ", path))
      .suggest("check that the folder exists and is writable and that the disk is not full");
}

void Journal::check() const {
  if (path_.empty()) return;
  std::ofstream file(path_, std::ios::app);
  if (!file) fail_write(path_);
}

const Json* Journal::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void Journal::add(const std::string& key, const Json& value) {
  if (path_.empty()) return;
  std::ofstream file(path_, std::ios::app);
  // Do not append to a truncated last line.
  if (file.tellp() > 0) {
    std::ifstream last(path_, std::ios::binary);
    last.seekg(-1, std::ios::end);
    if (last.get() != '\n') file << "\n";
  }
  file << Json{{"command", command_}, {"key", key}, {"value", value}}.dump() << "\n" << std::flush;
  if (!file) fail_write(path_);
}

}  // namespace galley::tools
