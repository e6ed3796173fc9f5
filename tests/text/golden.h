#pragma once
// The files of tests/text/golden, made by make_text_golden.py. GALLEY_TEXT_GOLDEN names another folder with the same files, e.g. of 10,000
// strings.

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace galley::text {

inline std::string golden_folder() {
  const char* other = std::getenv("GALLEY_TEXT_GOLDEN");
  return other ? other : std::string(GALLEY_SOURCE_DIR) + "/tests/text/golden";
}
inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream file(golden_folder() + "/" + name);
  return nlohmann::json::parse(file);
}
inline std::vector<std::string> golden_texts() { return golden_json("texts.json").get<std::vector<std::string>>(); }

/// A text as a C++ programmer would write it, for messages.
inline std::string shown(const std::string& text) { return nlohmann::json(text.substr(0, 200)).dump(-1, ' ', true); }

}  // namespace galley::text
