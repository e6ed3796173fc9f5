#pragma once
// tests/golden/quant/observers.txt: results of PyTorch's observers for the values in values.h.

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace galley::quant_test {

struct Golden {
  std::vector<double> numbers;  ///< Scales, then zero points.
  double scale(size_t i = 0) const { return numbers.at(i); }
  int64_t zero_point(size_t i = 0) const { return static_cast<int64_t>(numbers.at(numbers.size() / 2 + i)); }
};

/// By "case observer scheme".
inline const std::map<std::string, Golden>& golden() {
  static const std::map<std::string, Golden> all = [] {
    std::map<std::string, Golden> read;
    std::ifstream file(std::string(GALLEY_SOURCE_DIR) + "/tests/golden/quant/observers.txt");
    std::string line;
    while (std::getline(file, line)) {
      if (line.starts_with("#")) continue;
      std::istringstream words(line);
      std::string name, observer, scheme, word;
      words >> name >> observer >> scheme;
      Golden& golden = read[name + " " + observer + " " + scheme];
      while (words >> word) golden.numbers.push_back(std::strtod(word.c_str(), nullptr));
    }
    return read;
  }();
  return all;
}

}  // namespace galley::quant_test
