#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace galley::testing_cli {

/// The objects of JSON lines, one per line.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

}  // namespace galley::testing_cli
