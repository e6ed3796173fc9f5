#pragma once
// Reads the tables of tests/golden/optim: "case NAME" lines, each followed by "KEY numbers..." lines.

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace galley {

using GoldenRows = std::vector<std::pair<std::string, std::vector<double>>>;

inline std::map<std::string, GoldenRows> read_golden(const std::string& file) {
  std::ifstream in(std::string(GALLEY_SOURCE_DIR) + "/tests/golden/optim/" + file);
  std::map<std::string, GoldenRows> cases;
  std::string line, name;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "#") continue;
    if (key == "case") {
      words >> name;
      cases[name];
      continue;
    }
    std::vector<double> values;
    for (std::string word; words >> word;) values.push_back(std::stod(word));
    cases[name].emplace_back(key, std::move(values));
  }
  return cases;
}

}  // namespace galley
