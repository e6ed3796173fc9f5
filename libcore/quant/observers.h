#pragma once
// Statistics of one value over many batches, in constant memory, and the observers that compute scale and zero point from them. One pass
// over the data serves every observer.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/quant/config.h"
#include "libcore/tensor/quant_params.h"

namespace galley {

struct BatchRange {
  float min = 0, max = 0;
  friend bool operator==(const BatchRange&, const BatchRange&) = default;
};

/// Counts of values in at most kBins bins of equal width, a power of two. Bin b holds [b width, (b+1) width), so 0 is an edge. The width is
/// the smallest for which the observed range (including 0) fits; it doubles by merging pairs of bins. Counts therefore depend only on the
/// values, not on their order or their division into batches and files.
class Histogram {
 public:
  static constexpr int64_t kBins = 8192;
  static constexpr int kMinExponent = -126, kMaxExponent = 116;  ///< Exponent of the width; at the largest, all finite floats fit.

  Histogram() : counts_(static_cast<size_t>(kBins)) {}
  /// A histogram read from a file: `counts` of the bins from `first` on. Throws Error (kInput) if the numbers are not consistent.
  Histogram(int exponent, int64_t first, std::span<const int64_t> counts, int64_t zeros);

  /// Widens the bins until min and max fit (0 always fits).
  void cover(float min, float max);
  bool covers(float min, float max) const;
  /// Counts of one thread, in the current bins.
  struct Counts {
    std::vector<uint32_t> bins = std::vector<uint32_t>(static_cast<size_t>(kBins));
    int64_t zeros = 0, total = 0;
  };
  /// Counts values[0], values[stride], ... of the first n values; they must be covered.
  void count(const float* values, int64_t n, int64_t stride, Counts& counts) const;
  void add(const Counts& counts);
  void merge(const Histogram& other);

  double width() const;
  int exponent() const { return exponent_; }
  int64_t total() const { return total_; }
  /// Number of exact zeros (also counted in bin 0).
  int64_t zeros() const { return zeros_; }
  /// Indices of the first and last non-empty bin; last < first if the histogram is empty.
  int64_t first() const;
  int64_t last() const;
  /// Count of a bin between first() and last().
  int64_t count(int64_t bin) const { return counts_[static_cast<size_t>(bin - begin_)]; }
  /// Equal width and counts.
  friend bool operator==(const Histogram& a, const Histogram& b);

 private:
  void merge_pairs();
  void include(int64_t low, int64_t high);

  int exponent_ = kMinExponent;
  int64_t low_ = 0, high_ = 0;  // first and last bin of the covered range
  int64_t begin_ = 0;           // index of counts_[0]; low_ and high_ are inside
  std::vector<int64_t> counts_;
  int64_t total_ = 0, zeros_ = 0;
};

class RangeStatistics {
 public:
  RangeStatistics() = default;
  /// Statistics read from a file. Throws Error (kInput) if the parts are not consistent.
  RangeStatistics(std::vector<BatchRange> batches, Histogram histogram, int64_t elements, int64_t stride);

  /// Adds a batch of `samples` rows of `row` values each. The range covers all values; the histogram counts every stride-th value of each
  /// row. Throws Error (kNumeric) with `name` if a value is not finite. Uses all threads.
  void add(const float* values, int64_t samples, int64_t row, std::string_view name);
  /// Appends the other's batches. Throws Error (kInput) if the strides differ.
  void merge(const RangeStatistics& other, std::string_view name);

  bool empty() const { return elements_ == 0; }
  const std::vector<BatchRange>& batches() const { return batches_; }
  const Histogram& histogram() const { return histogram_; }
  int64_t elements() const { return elements_; }
  /// Stride of the histogram within a row; 0 before the first batch.
  int64_t stride() const { return stride_; }
  /// Range over all batches.
  BatchRange range() const;
  /// Moving average in f32, like PyTorch's MovingAverageMinMaxObserver: the first batch, then a += c (batch - a).
  BatchRange moving_average(double c) const;
  friend bool operator==(const RangeStatistics&, const RangeStatistics&) = default;

 private:
  std::vector<BatchRange> batches_;
  Histogram histogram_;
  int64_t elements_ = 0, stride_ = 0;
};

/// The histogram stride for rows of that many values: counts at most about 16384 values of a row and is coprime to the row length, so that
/// it visits all channels and positions.
int64_t histogram_stride(int64_t row);

/// Result of an observer.
struct ObservedRange {
  ObserverType observer = ObserverType::kMinMax;  ///< For kAuto: the selected observer.
  double min = 0, max = 0;                        ///< Range that the integers must cover; it contains 0.
  QuantParams params;
  double sqnr_db = 0;  ///< SQNR of the quantized histogram in dB; infinite if there is no error.
};
/// Throws Error (kNumeric) if the statistics are empty.
ObservedRange observe(const RangeStatistics& statistics, const ActivationScheme& scheme);
/// Only the parameters of observe().
inline QuantParams choose_params(const RangeStatistics& statistics, const ActivationScheme& scheme) {
  return observe(statistics, scheme).params;
}

/// The scale of f8_e4m3 by min_max, moving_average or percentile; auto is min_max: f8 keeps its relative error over 2^15, so that a
/// narrower range gains nothing. Throws Error (kNumeric) if the statistics are empty, (kRecipe) for other observers.
float choose_f8_scale(const RangeStatistics& statistics, const ObserverSpec& observer);
/// Does choose_f8_scale accept the observer?
bool observes_f8(ObserverType type);

/// Mean squared error and SQNR of the histogram's values with these parameters; values are uniform within a bin, zeros are exact.
double histogram_mse(const Histogram& histogram, const QuantParams& params);
double histogram_sqnr_db(const Histogram& histogram, const QuantParams& params);

}  // namespace galley
