#pragma once
// The values of tests/golden/quant/make.py, bit for bit: closed forms of float32.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace galley::quant_test {

class Uniform {
 public:
  explicit Uniform(uint64_t seed) : s_(seed) {}
  float operator()() {
    s_ = s_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(s_ >> 40) / 16777216.0f;
  }

 private:
  uint64_t s_;
};

inline float bell(Uniform& u) {
  const float a = u(), b = u(), c = u(), d = u();
  return ((a + b) + (c + d)) - 2;
}

inline const std::vector<std::string> kCases{"relu", "bell", "tail", "positive", "negative", "shifted"};

inline float value(const std::string& name, Uniform& u) {
  if (name == "relu") return std::max(bell(u), 0.0f);
  if (name == "bell") return bell(u);
  if (name == "tail") {
    const float x = bell(u);
    return x / (u() + 0.02f);
  }
  if (name == "shifted") return bell(u) * 0.125f + 5;
  const float a = u(), b = u();
  return name == "positive" ? (a * b) * 3 : -(a * b);
}

/// Four batches of 4096.
inline std::vector<std::vector<float>> batches(const std::string& name) {
  Uniform u(static_cast<uint64_t>(std::find(kCases.begin(), kCases.end(), name) - kCases.begin()) + 1);
  std::vector<std::vector<float>> all(4);
  for (size_t k = 0; k < all.size(); ++k) {
    for (int i = 0; i < 4096; ++i) all[k].push_back(value(name, u) * (1 + static_cast<float>(k) / 4));
  }
  return all;
}

/// [8, 512]
inline std::vector<float> weights() {
  Uniform u(100);
  std::vector<float> all;
  for (int c = 0; c < 8; ++c) {
    for (int i = 0; i < 512; ++i) all.push_back(bell(u) / static_cast<float>(1 << c));
  }
  return all;
}

}  // namespace galley::quant_test
