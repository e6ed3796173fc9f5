#pragma once
// Error of quantized values compared with the original ones.

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace galley {

/// Accumulates the error over pairs of original and quantized values.
class QuantizationError {
 public:
  void add(double original, double quantized) {
    signal_ += original * original;
    noise_ += (original - quantized) * (original - quantized);
    ++count_;
  }
  void add(std::span<const float> original, std::span<const float> quantized) {
    for (size_t i = 0; i < original.size(); ++i) add(original[i], quantized[i]);
  }
  /// 20 log10(|x| / |x - xq|); infinite without an error, NaN if a value is not finite.
  double sqnr_db() const { return noise_ == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal_ / noise_); }
  /// Mean squared error.
  double mse() const { return count_ == 0 ? 0 : noise_ / static_cast<double>(count_); }
  int64_t count() const { return count_; }

 private:
  double signal_ = 0, noise_ = 0;
  int64_t count_ = 0;
};

inline double sqnr_db(std::span<const float> original, std::span<const float> quantized) {
  QuantizationError error;
  error.add(original, quantized);
  return error.sqnr_db();
}
inline double mse(std::span<const float> original, std::span<const float> quantized) {
  QuantizationError error;
  error.add(original, quantized);
  return error.mse();
}

}  // namespace galley
