#include "tests/ops/golden_file.h"

#include <fstream>
#include <sstream>

namespace galley::test {

std::map<std::string, GoldenArrays> read_golden(const std::string& name) {
  std::map<std::string, GoldenArrays> cases;
  std::ifstream file(std::string(GALLEY_SOURCE_DIR "/tests/golden/") + name);
  std::string line, current;
  while (std::getline(file, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string array_name, word;
    words >> array_name;
    if (array_name == "case") {
      words >> current;
      continue;
    }
    RefArray& array = cases[current][array_name];
    while (words >> word && word != "|") array.shape.push_back(std::stoll(word));
    while (words >> word) array.v.push_back(std::stod(word));
    GALLEY_ASSERT(static_cast<int64_t>(array.v.size()) == array.shape.elements(), current, " ", array_name);
  }
  GALLEY_ASSERT(!cases.empty(), "no golden cases in ", name);
  return cases;
}

}  // namespace galley::test
