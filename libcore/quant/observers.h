#pragma once
// Statistics of one value over many batches, in constant memory, and the observers that turn them into scale and zero point. One pass over
// the data serves every observer.

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

/// Counts of values in at most kBins bins of one width, a power of two. Bin b holds [b width, (b+1) width), so that 0 is an edge; the
/// width is the smallest for which the range seen (with 0) fits, and doubles by merging pairs. Hence counts depend on the values
/// alone, never on their order or on how they were cut into batches and files.
class Histogram {
 public:
  static constexpr int64_t kBins = 8192;
  static constexpr int kMinExponent = -126, kMaxExponent = 116;  ///< Of the width: all finite floats fit at the largest.

  Histogram() : counts_(static_cast<size_t>(kBins)) {}
  /// One read back from a file: `counts` are of the bins from `first` on. Throws Error (kInput) where numbers cannot be those of a
  /// histogram.
  Histogram(int exponent, int64_t first, std::span<const int64_t> counts, int64_t zeros);

  /// Widens the bins until min and max fit (0 always does).
  void cover(float min, float max);
  bool covers(float min, float max) const;
  /// What one thread counted, in the bins as they are.
  struct Counts {
    std::vector<uint32_t> bins = std::vector<uint32_t>(static_cast<size_t>(kBins));
    int64_t zeros = 0, total = 0;
  };
  /// Counts values[0], values[stride], ... of the first n; they must be covered.
  void count(const float* values, int64_t n, int64_t stride, Counts& counts) const;
  void add(const Counts& counts);
  void merge(const Histogram& other);

  double width() const;
  int exponent() const { return exponent_; }
  int64_t total() const { return total_; }
  /// Values that are exactly 0 (they are counted in bin 0 too).
  int64_t zeros() const { return zeros_; }
  /// Indices of the first and last bin that is not empty; last < first: nothing was counted.
  int64_t first() const;
  int64_t last() const;
  /// Of a bin between first() and last().
  int64_t count(int64_t bin) const { return counts_[static_cast<size_t>(bin - begin_)]; }
  /// Same width and same counts.
  friend bool operator==(const Histogram& a, const Histogram& b);

 private:
  void merge_pairs();
  void include(int64_t low, int64_t high);

  int exponent_ = kMinExponent;
  int64_t low_ = 0, high_ = 0;  // bins of the range covered
  int64_t begin_ = 0;           // index of counts_[0]; low_ and high_ are inside
  std::vector<int64_t> counts_;
  int64_t total_ = 0, zeros_ = 0;
};

class RangeStatistics {
 public:
  RangeStatistics() = default;
  /// One read back from a file. Throws Error (kInput) where the parts contradict each other.
  RangeStatistics(std::vector<BatchRange> batches, Histogram histogram, int64_t elements, int64_t stride);

  /// A batch of `samples` rows of `row` values each. Smallest and largest are of all values; the histogram takes every stride-th of each
  /// row. Throws Error (kNumeric), naming `name`, for NaN and infinity. Runs on all threads.
  void add(const float* values, int64_t samples, int64_t row, std::string_view name);
  /// As if the other's batches had come after these. Throws Error (kInput) where rows differ in stride.
  void merge(const RangeStatistics& other, std::string_view name);

  bool empty() const { return elements_ == 0; }
  const std::vector<BatchRange>& batches() const { return batches_; }
  const Histogram& histogram() const { return histogram_; }
  int64_t elements() const { return elements_; }
  /// Of the histogram: every so many values of a row; 0 before the first batch.
  int64_t stride() const { return stride_; }
  /// Over all batches.
  BatchRange range() const;
  /// Moving average in f32 as PyTorch's MovingAverageMinMaxObserver: the first batch, then a += c (batch - a).
  BatchRange moving_average(double c) const;
  friend bool operator==(const RangeStatistics&, const RangeStatistics&) = default;

 private:
  std::vector<BatchRange> batches_;
  Histogram histogram_;
  int64_t elements_ = 0, stride_ = 0;
};

/// The stride of rows of that many values: at most about 16384 are counted of a row, and it shares no factor with the row's length, so that
/// it visits all channels and places.
int64_t histogram_stride(int64_t row);

/// What an observer decides.
struct ObservedRange {
  ObserverType observer = ObserverType::kMinMax;  ///< Of kAuto: the one that won.
  double min = 0, max = 0;                        ///< Range that the integers are to cover; it holds 0.
  QuantParams params;
  double sqnr_db = 0;  ///< Of the histogram's values, quantized; infinite where nothing is lost.
};
/// Throws Error (kNumeric) where the statistics saw no data.
ObservedRange observe(const RangeStatistics& statistics, const ActivationScheme& scheme);
/// The same, its parameters alone.
inline QuantParams choose_params(const RangeStatistics& statistics, const ActivationScheme& scheme) {
  return observe(statistics, scheme).params;
}

/// Mean square error and SQNR of the histogram's values under these parameters: values of a bin are spread evenly, zeros are exact.
double histogram_mse(const Histogram& histogram, const QuantParams& params);
double histogram_sqnr_db(const Histogram& histogram, const QuantParams& params);

}  // namespace galley
