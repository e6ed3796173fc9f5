#pragma once
// Reads the golden files of tests/golden/nn, arrays in float64: lines "case NAME OPTIONS...", each followed by lines "ARRAY SHAPE... |
// VALUES...".

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "libcore/backends/ref/ref.h"

namespace galley {

struct GoldenArrays {
  std::string name;
  std::string options;  // the words after the name
  std::map<std::string, RefArray> arrays;
};

/// The cases of tests/golden/nn/<name>.txt.
inline std::vector<GoldenArrays> read_golden_arrays(const std::string& name) {
  std::vector<GoldenArrays> cases;
  std::ifstream file(GALLEY_SOURCE_DIR "/tests/golden/nn/" + name + ".txt");
  EXPECT_TRUE(file) << name;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key, word;
    words >> key;
    if (key == "#") continue;
    if (key == "case") {
      GoldenArrays& next = cases.emplace_back();
      words >> next.name;
      std::getline(words, next.options);
      continue;
    }
    if (cases.empty()) {
      ADD_FAILURE() << name << ": the array " << key << " comes before the first case";
      break;
    }
    RefArray& array = cases.back().arrays[key];
    while (words >> word && word != "|") array.shape.push_back(std::stoll(word));
    while (words >> word) array.v.push_back(std::stod(word));
    EXPECT_EQ(static_cast<int64_t>(array.v.size()), array.shape.elements()) << name << ", " << cases.back().name << ": " << key;
  }
  return cases;
}

/// Expects the same shape and values. Both sides compute in double, but their sums differ in order.
inline void expect_same(const std::string& what, const RefArray& got, const RefArray& expected) {
  ASSERT_EQ(got.shape, expected.shape) << what;
  for (int64_t i = 0; i < expected.shape.elements(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= 1e-11 * std::max(1.0, std::abs(expected[i]))))
      ADD_FAILURE() << what << " element " << i << " is " << got[i] << ", PyTorch's " << expected[i];
  }
}

}  // namespace galley
