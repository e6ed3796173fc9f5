#include "libcore/quant/scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// One copy of a function for each level of the instruction set; sanitizers and clang build the plain one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GALLEY_QUANT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GALLEY_QUANT_CLONES
#endif

namespace galley {
namespace {

constexpr int64_t kLanes = 64;

/// Floats as integers of the same order: a NaN lies beyond the infinity of its sign.
inline int32_t key_of(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
inline float float_of(int32_t key) { return std::bit_cast<float>(key_of(key)); }

GALLEY_QUANT_CLONES void scan_keys(const float* values, int64_t count, int32_t* low, int32_t* high) {
  int32_t lows[kLanes], highs[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    lows[l] = std::numeric_limits<int32_t>::max();
    highs[l] = std::numeric_limits<int32_t>::min();
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const auto bits = std::bit_cast<int32_t>(values[i + l]);
      const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
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

constexpr int64_t kEdges = 256;

/// Integral of the square error up to each edge, in steps: over a whole step 1/12, within one r^3/3 from its middle.
GALLEY_QUANT_CLONES void error_integrals(int64_t first, double edge_in_steps, double shift, double low, double high, double* integrals) {
  for (int64_t e = 0; e < kEdges; ++e) {
    const double t = static_cast<double>(static_cast<int32_t>(first + e)) * edge_in_steps - shift;
    double n = std::nearbyint(t);
    n = n < low ? low : n;
    n = n > high ? high : n;
    const double r = t - n;
    integrals[e] = n / 12 + r * r * r / 3;
  }
}

constexpr int64_t kRun = 4096;  // summed in float

GALLEY_QUANT_CLONES float rounding_error(const float* x, int64_t count, float scale, float low, float high) {
  const float inverse = 1 / scale;
  float sums[kLanes] = {};
  const auto square = [&](float value) {
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

}  // namespace

Extent scan_extent(const float* values, int64_t count) {
  int32_t low = 0, high = 0;
  scan_keys(values, count, &low, &high);
  return {float_of(low), float_of(high)};
}

double scan_square_error(const double* counts, int64_t bins, int64_t first, double width, const QuantGrid& grid) {
  double integrals[kEdges];
  double sum = 0;
  for (int64_t begin = 0; begin < bins; begin += kEdges - 1) {
    const int64_t count = std::min(kEdges - 1, bins - begin);
    error_integrals(first + begin, width / grid.step, grid.shift, grid.low, grid.high, integrals);
    for (int64_t i = 0; i < count; ++i) sum += counts[begin + i] * (integrals[i + 1] - integrals[i]);
  }
  return sum * grid.step * grid.step * grid.step / width;
}

double scan_rounding_error(const float* values, int64_t count, float scale, float low, float high) {
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kRun)
    sum += static_cast<double>(rounding_error(values + begin, std::min(kRun, count - begin), scale, low, high));
  return sum;
}

}  // namespace galley
