#pragma once
// Reads tests/golden/data/images.bin.gz (see make_goldens.py there).

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "libcore/data/image.h"
#include "libcore/data/unpack.h"

namespace galley {

struct Golden {
  DType dtype = DType::kU8;
  std::vector<int64_t> sizes;
  std::vector<std::byte> data;

  Image image() const {
    Image result(dtype, sizes.at(0), sizes.at(1), sizes.at(2));
    std::memcpy(result.data(), data.data(), data.size());
    return result;
  }
  std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
  std::span<const float> floats() const { return {reinterpret_cast<const float*>(data.data()), data.size() / 4}; }
};

inline const std::map<std::string, Golden>& goldens() {
  static const std::map<std::string, Golden> all = [] {
    const std::vector<std::byte> bytes = read_gzip(GALLEY_SOURCE_DIR "/tests/golden/data/images.bin.gz", 1 << 26);
    std::map<std::string, Golden> result;
    size_t at = 0;
    const auto number = [&] {
      uint32_t value = 0;
      std::memcpy(&value, &bytes.at(at), 4);
      at += 4;
      return value;
    };
    while (at < bytes.size()) {
      std::string name(number(), '\0');
      std::memcpy(name.data(), &bytes.at(at), name.size());
      at += name.size();
      Golden golden;
      golden.dtype = bytes.at(at++) == std::byte{0} ? DType::kU8 : DType::kF32;
      size_t size = static_cast<size_t>(dtype_size(golden.dtype));
      for (uint32_t rank = number(); rank > 0; --rank) size *= static_cast<size_t>(golden.sizes.emplace_back(number()));
      golden.data.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + size));
      at += size;
      result.emplace(std::move(name), std::move(golden));
    }
    return result;
  }();
  return all;
}

inline const Golden& golden(const std::string& name) {
  const auto found = goldens().find(name);
  if (found == goldens().end()) throw std::out_of_range("no golden named " + name);
  return found->second;
}

/// The difference of two images.
struct Difference {
  double largest = 0;
  double share = 0;  ///< Of the values, those that differ at all.
};

inline void expect_near(const Image& got, const Golden& want, Difference tolerance, const std::string& what) {
  const Image expected = want.image();
  ASSERT_EQ(got.str(), expected.str()) << what;
  double largest = 0;
  int64_t differing = 0;
  for (int64_t i = 0; i < got.values(); ++i) {
    const double a = load_element(got.dtype(), got.data() + i * dtype_size(got.dtype()));
    const double b = load_element(got.dtype(), expected.data() + i * dtype_size(got.dtype()));
    largest = std::max(largest, std::isnan(a) ? INFINITY : std::abs(a - b));
    differing += !(a == b);
  }
  EXPECT_FALSE(!(largest <= tolerance.largest)) << what << ": largest difference " << largest;
  const double share = static_cast<double>(differing) / static_cast<double>(got.values());
  EXPECT_LE(share, tolerance.share) << what << ": " << differing << " of " << got.values() << " values differ";
}

/// Bit for bit.
inline void expect_same(const Image& got, const Golden& want, const std::string& what) { expect_near(got, want, {0, 0}, what); }

}  // namespace galley
