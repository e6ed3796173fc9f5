#pragma once
// Parts that attribute structs of several families share.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/options.h"

namespace galley {

/// An element-wise function that another operator applies to its output.
enum class Activation { kNone, kRelu, kRelu6, kHardswish, kHardsigmoid, kSigmoid, kSilu, kGelu, kTanh };
inline constexpr std::array<std::string_view, 9> kActivationNames{"none",    "relu", "relu6", "hardswish", "hardsigmoid",
                                                                  "sigmoid", "silu", "gelu",  "tanh"};

/// Rows and columns: one number for both, or two.
inline std::array<int64_t, 2> pair(const std::vector<int64_t>& v) {
  GALLEY_CHECK(v.size() == 1 || v.size() == 2, "expected one number or two (rows, columns), got ", v.size());
  return {v.front(), v.back()};
}

/// Sizes of the spatial axes (rows and columns, or depth, rows and columns): one number for all, or one for each.
inline std::vector<int64_t> per_axis(const std::vector<int64_t>& v, int axes) {
  const auto count = static_cast<size_t>(axes);
  GALLEY_CHECK(v.size() == 1 || v.size() == count, "expected one number or ", axes, ", one for each axis, got ", v.size());
  return v.size() == 1 ? std::vector<int64_t>(count, v.front()) : v;
}

}  // namespace galley
