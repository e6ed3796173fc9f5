#pragma once
// Reads golden files of models: "KEY full COUNT VALUES..." and "KEY sample COUNT NORM V0 V1 V2 V3" with the elements at 0, n/3, 2n/3, n-1.
// Files of several cases begin each with "case NAME"; lines that begin with "# " are comments.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace galley {

struct GoldenEntry {
  bool full = false;
  int64_t count = 0;
  std::vector<double> values;
  /// Root mean square of the stored values: the scale of errors.
  double rms() const {
    if (!full) return values[0] / std::sqrt(static_cast<double>(count));
    double sum = 0;
    for (const double v : values) sum += v * v;
    return std::sqrt(sum / static_cast<double>(count));
  }
};

using GoldenFile = std::map<std::string, GoldenEntry>;

/// The folder of golden files, which GALLEY_TEST_GOLDEN names where the tests run on another machine than their build.
inline std::string golden_folder() {
  const char* given = std::getenv("GALLEY_TEST_GOLDEN");
  return given != nullptr ? given : GALLEY_SOURCE_DIR "/tests/golden";
}
/// The device of compiled models; scripts/gpu-check names a GPU by GALLEY_TEST_DEVICE.
inline std::string golden_device() {
  const char* given = std::getenv("GALLEY_TEST_DEVICE");
  return given != nullptr ? given : "cpu";
}

/// The cases of tests/golden/PATH.txt by name. Lines before the first `case` are the case "".
inline std::map<std::string, GoldenFile> read_golden_cases(const std::string& path) {
  std::ifstream file(golden_folder() + "/" + path + ".txt");
  EXPECT_TRUE(file) << path;
  std::map<std::string, GoldenFile> cases;
  std::string line, name;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key, kind;
    words >> key >> kind;
    if (key == "case") name = kind;
    if (key == "#" || key == "case") continue;
    GoldenEntry entry;
    entry.full = kind == "full";
    words >> entry.count;
    for (double v = 0; words >> v;) entry.values.push_back(v);
    EXPECT_EQ(entry.values.size(), entry.full ? static_cast<size_t>(entry.count) : 5u) << path << " " << name << " " << key;
    cases[name].emplace(key, std::move(entry));
  }
  EXPECT_FALSE(cases.empty()) << path;
  return cases;
}

/// tests/golden/models/NAME.txt, which has one case.
inline GoldenFile read_golden(const std::string& name) { return read_golden_cases("models/" + name).at(""); }

/// Compares every stored number of `entry` with `got`: |error| <= relative * max(|want|, rms) + absolute.
inline void expect_golden(const std::string& what, const GoldenEntry& entry, std::span<const double> got, double relative,
                          double absolute = 0) {
  ASSERT_EQ(static_cast<int64_t>(got.size()), entry.count) << what;
  const double scale = entry.rms();
  const auto near = [&](double value, double want, const std::string& where, double floor) {
    const double tolerance = relative * std::max(std::fabs(want), scale) + floor;
    EXPECT_TRUE(std::fabs(value - want) <= tolerance)
        << what << " " << where << ": got " << value << ", want " << want << ", error " << value - want << ", tolerance " << tolerance;
  };
  if (entry.full) {
    for (size_t i = 0; i < got.size(); ++i) near(got[i], entry.values[i], "[" + std::to_string(i) + "]", absolute);
    return;
  }
  double sum = 0;
  for (const double v : got) sum += v * v;
  const int64_t n = entry.count;
  near(std::sqrt(sum), entry.values[0], "norm", absolute * std::sqrt(static_cast<double>(n)));
  const int64_t at[] = {0, n / 3, 2 * n / 3, n - 1};
  for (size_t i = 0; i < 4; ++i) near(got[static_cast<size_t>(at[i])], entry.values[i + 1], "[" + std::to_string(at[i]) + "]", absolute);
}

}  // namespace galley
