// Scans of float arrays for the calibration of quantization (scan.h): plain loops that the compiler vectorizes, compiled for each
// instruction set. One pass each, bound by memory; sums of 4096 values in float, joined in double.

#include "libcore/quant/scan.h"

#include <hwy/detect_targets.h>
// Only the baseline, AVX2 and AVX-512: each target costs the build a copy of every function.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS ((HWY_AVX3 - 1) | HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/quant/scan.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_SCAN_ONCE
#define GALLEY_SCAN_ONCE

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace galley::scan_loops {

constexpr int64_t kEdges = 256;
constexpr int64_t kRun = 4096;  // values summed in float

/// Floats as integers of the same order: a NaN comes after the infinity of its sign.
HWY_INLINE int32_t key_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
HWY_INLINE float float_of(int32_t key) { return std::bit_cast<float>(key_of(key)); }

}  // namespace galley::scan_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::scan_loops {
namespace HWY_NAMESPACE {

constexpr int64_t kLanes = 64;

void scan_keys(const float* values, int64_t count, int32_t* low, int32_t* high) {
  int32_t lows[kLanes], highs[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    lows[l] = std::numeric_limits<int32_t>::max();
    highs[l] = std::numeric_limits<int32_t>::min();
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const int32_t key = key_of(std::bit_cast<int32_t>(values[i + l]));
      lows[l] = key < lows[l] ? key : lows[l];
      highs[l] = key > highs[l] ? key : highs[l];
    }
  }
  for (int64_t l = 0; i + l < count; ++l) {
    const int32_t key = key_of(std::bit_cast<int32_t>(values[i + l]));
    lows[l] = std::min(lows[l], key);
    highs[l] = std::max(highs[l], key);
  }
  for (int64_t l = 1; l < kLanes; ++l) {
    lows[0] = std::min(lows[0], lows[l]);
    highs[0] = std::max(highs[0], highs[l]);
  }
  *low = lows[0];
  *high = highs[0];
}

/// Integral of the square error up to each edge, in steps: over a whole step 1/12, within one r^3/3 from its middle.
void error_integrals(int64_t first, double edge_in_steps, double shift, double low, double high, double* integrals) {
  for (int64_t e = 0; e < kEdges; ++e) {
    const double t = static_cast<double>(static_cast<int32_t>(first + e)) * edge_in_steps - shift;
    double n = std::nearbyint(t);
    n = n < low ? low : n;
    n = n > high ? high : n;
    const double r = t - n;
    integrals[e] = n / 12 + r * r * r / 3;
  }
}

float rounding_error(const float* x, int64_t count, float scale, float low, float high) {
  const float inverse = 1 / scale;
  float sums[kLanes] = {};
  const auto square = [&](float value) HWY_ATTR {
    float q = std::nearbyint(value * inverse);
    q = q < low ? low : q;
    q = q > high ? high : q;
    const float error = value - q * scale;
    return error * error;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sums[l] += square(x[i + l]);
  }
  for (int64_t l = 0; i + l < count; ++l) sums[l] += square(x[i + l]);
  for (int64_t l = 1; l < kLanes; ++l) sums[0] += sums[l];
  return sums[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::scan_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace scan_loops {

HWY_EXPORT(scan_keys);
HWY_EXPORT(error_integrals);
HWY_EXPORT(rounding_error);

}  // namespace scan_loops

namespace {

using scan_loops::kEdges;
using scan_loops::kRun;

}  // namespace

Extent scan_extent(const float* values, int64_t count) {
  int32_t low = 0, high = 0;
  HWY_DYNAMIC_DISPATCH(scan_loops::scan_keys)(values, count, &low, &high);
  return {scan_loops::float_of(low), scan_loops::float_of(high)};
}

double scan_square_error(const double* counts, int64_t bins, int64_t first, double width, const QuantGrid& grid) {
  double integrals[kEdges];
  double sum = 0;
  for (int64_t begin = 0; begin < bins; begin += kEdges - 1) {
    const int64_t count = std::min(kEdges - 1, bins - begin);
    HWY_DYNAMIC_DISPATCH(scan_loops::error_integrals)(first + begin, width / grid.step, grid.shift, grid.low, grid.high, integrals);
    for (int64_t i = 0; i < count; ++i) sum += counts[begin + i] * (integrals[i + 1] - integrals[i]);
  }
  return sum * grid.step * grid.step * grid.step / width;
}

double scan_rounding_error(const float* values, int64_t count, float scale, float low, float high) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kRun)
    sum += static_cast<double>(
        HWY_DYNAMIC_DISPATCH(scan_loops::rounding_error)(values + begin, std::min(kRun, count - begin), scale, low, high));
  return sum;
}

}  // namespace galley

#endif  // HWY_ONCE
