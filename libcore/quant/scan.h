#pragma once
// Loops over many values that must be cheap compared with a forward pass, compiled for several instruction sets.

#include <cstdint>

namespace galley {

/// Minimum and maximum of count >= 1 values. If NaN or infinity is among them, at least one of the two is not finite.
struct Extent {
  float min = 0, max = 0;
};
Extent scan_extent(const float* values, int64_t count);

/// A uniform quantization grid: value x becomes n = clamp(round(x / step - shift), low, high), which represents (n + shift) step.
struct QuantGrid {
  double step = 1, shift = 0, low = 0, high = 255;
};

/// Sum over bins of counts[i] times the mean squared error of values uniform in bin i, [first + i, first + i + 1) width.
double scan_square_error(const double* counts, int64_t bins, int64_t first, double width, const QuantGrid& grid);

/// Sum of (x - scale clamp(round(x / scale), low, high))^2.
double scan_rounding_error(const float* values, int64_t count, float scale, float low, float high);

}  // namespace galley
