// Histogram and RangeStatistics: counting and merging.

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/quant/observers.h"
#include "libcore/quant/scan.h"

namespace galley {
namespace {

constexpr int64_t kCountedPerRow = 16384;
constexpr int64_t kPiece = 32768;  // values
constexpr int64_t kCountLimit = int64_t{1} << 60;

/// The bin of a value. Exact: scaling by a power of two loses bits only of tiny values, whose sign decides the bin.
inline int64_t bin_of(float value, float width, float inverse) {
  auto bin = static_cast<int32_t>(value * inverse);
  bin -= value < static_cast<float>(bin) * width ? 1 : 0;
  return bin;
}

int64_t floor_half(int64_t bin) { return bin >> 1; }

/// The bins of a range and 0, for width 2^exponent.
std::pair<int64_t, int64_t> bins_of(float min, float max, int exponent) {
  const auto bin = [&](float value) { return static_cast<int64_t>(std::floor(std::ldexp(static_cast<double>(value), -exponent))); };
  return {bin(std::min(min, 0.0f)), bin(std::max(max, 0.0f))};
}

}  // namespace

Histogram::Histogram(int exponent, int64_t first, std::span<const int64_t> counts, int64_t zeros) : counts_(static_cast<size_t>(kBins)) {
  const auto bins = static_cast<int64_t>(counts.size());
  GALLEY_CHECK_INPUT(exponent >= kMinExponent && exponent <= kMaxExponent, "a histogram has bins of width 2^", exponent,
                     ", which must be between 2^", kMinExponent, " and 2^", kMaxExponent);
  GALLEY_CHECK_INPUT(bins <= kBins && first > -kBins && first < kBins && first + bins <= kBins, "a histogram has ", bins, " bins from ",
                     first, ", but at most ", kBins, " are allowed");
  exponent_ = exponent;
  if (bins > 0) include(first, first + bins - 1);
  for (int64_t i = 0; i < bins; ++i) {
    const int64_t count = counts[static_cast<size_t>(i)];
    GALLEY_CHECK_INPUT(count >= 0 && count <= kCountLimit - total_, "a histogram counts ", count, " values in a bin");
    counts_[static_cast<size_t>(first + i - begin_)] = count;
    total_ += count;
  }
  const int64_t near_zero = low_ <= 0 && high_ >= 0 ? this->count(0) : 0;
  GALLEY_CHECK_INPUT(zeros >= 0 && zeros <= near_zero, "a histogram counts ", zeros, " zeros among ", near_zero, " values of their bin");
  zeros_ = zeros;
}

double Histogram::width() const { return std::ldexp(1.0, exponent_); }

void Histogram::merge_pairs() {
  ++exponent_;
  GALLEY_ASSERT(exponent_ <= kMaxExponent);
  const int64_t begin = floor_half(begin_);
  if (total_ > 0) {
    std::vector<int64_t> merged(static_cast<size_t>(kBins));
    for (int64_t i = 0; i < kBins; ++i) merged[static_cast<size_t>(floor_half(begin_ + i) - begin)] += counts_[static_cast<size_t>(i)];
    counts_ = std::move(merged);
  }
  begin_ = begin;
  low_ = floor_half(low_);
  high_ = floor_half(high_);
}

void Histogram::include(int64_t low, int64_t high) {
  while (std::max(high_, high) - std::min(low_, low) >= kBins) {
    merge_pairs();
    low = floor_half(low);
    high = floor_half(high);
  }
  low_ = std::min(low_, low);
  high_ = std::max(high_, high);
  if (low_ >= begin_ && high_ < begin_ + kBins) return;
  // Leave equal room on both sides.
  const int64_t begin = low_ - (kBins - (high_ - low_ + 1)) / 2;
  std::vector<int64_t> moved(static_cast<size_t>(kBins));
  for (int64_t i = 0; i < kBins && total_ > 0; ++i) {
    const int64_t count = counts_[static_cast<size_t>(i)];
    if (count > 0) moved[static_cast<size_t>(begin_ + i - begin)] = count;
  }
  counts_ = std::move(moved);
  begin_ = begin;
}

bool Histogram::covers(float min, float max) const {
  const double width = this->width();
  return static_cast<double>(min) >= static_cast<double>(low_) * width && static_cast<double>(max) < static_cast<double>(high_ + 1) * width;
}

void Histogram::cover(float min, float max) {
  GALLEY_ASSERT(std::isfinite(min) && std::isfinite(max) && min <= max);
  // Widen first for the new range, because at the smallest widths a bin index would overflow.
  const double reach = std::max(std::abs(static_cast<double>(min)), std::abs(static_cast<double>(max)));
  while (std::ldexp(reach, -exponent_) > static_cast<double>(kBins)) merge_pairs();
  const auto [low, high] = bins_of(min, max, exponent_);
  include(low, high);
}

void Histogram::count(const float* values, int64_t n, int64_t stride, Counts& counts) const {
  const auto width = static_cast<float>(this->width());
  const float inverse = 1 / width;
  uint32_t* bins = counts.bins.data();
  int64_t zeros = 0;
  for (int64_t i = 0; i < n; i += stride) {
    ++bins[bin_of(values[i], width, inverse) - begin_];
    zeros += values[i] == 0 ? 1 : 0;
  }
  counts.zeros += zeros;
  counts.total += (n + stride - 1) / stride;
}

void Histogram::add(const Counts& counts) {
  for (size_t b = 0; b < counts_.size(); ++b) counts_[b] += counts.bins[b];
  zeros_ += counts.zeros;
  total_ += counts.total;
}

void Histogram::merge(const Histogram& other) {
  GALLEY_CHECK_INPUT(other.total_ <= kCountLimit - total_, "histograms of ", total_, " and ", other.total_,
                     " values are too large to merge");
  while (exponent_ < other.exponent_) merge_pairs();
  int shift = exponent_ - other.exponent_;
  include(other.low_ >> shift, other.high_ >> shift);
  shift = exponent_ - other.exponent_;
  for (int64_t i = 0; i < kBins; ++i) {
    const int64_t count = other.counts_[static_cast<size_t>(i)];
    if (count > 0) counts_[static_cast<size_t>(((other.begin_ + i) >> shift) - begin_)] += count;
  }
  total_ += other.total_;
  zeros_ += other.zeros_;
}

int64_t Histogram::first() const {
  for (int64_t i = 0; i < kBins; ++i) {
    if (counts_[static_cast<size_t>(i)] > 0) return begin_ + i;
  }
  return 0;
}

int64_t Histogram::last() const {
  for (int64_t i = kBins - 1; i >= 0; --i) {
    if (counts_[static_cast<size_t>(i)] > 0) return begin_ + i;
  }
  return -1;
}

bool operator==(const Histogram& a, const Histogram& b) {
  if (a.exponent_ != b.exponent_ || a.total_ != b.total_ || a.zeros_ != b.zeros_) return false;
  const int64_t first = a.first(), last = a.last();
  if (first != b.first() || last != b.last()) return false;
  for (int64_t bin = first; bin <= last; ++bin) {
    if (a.count(bin) != b.count(bin)) return false;
  }
  return true;
}

int64_t histogram_stride(int64_t row) {
  int64_t stride = std::max<int64_t>(1, (row + kCountedPerRow - 1) / kCountedPerRow);
  while (std::gcd(stride, row) != 1) ++stride;
  return stride;
}

RangeStatistics::RangeStatistics(std::vector<BatchRange> batches, Histogram histogram, int64_t elements, int64_t stride)
    : batches_(std::move(batches)), histogram_(std::move(histogram)), elements_(elements), stride_(stride) {
  GALLEY_CHECK_INPUT(batches_.empty() == (elements_ == 0) && elements_ >= histogram_.total() && stride_ >= (elements_ > 0 ? 1 : 0) &&
                         (elements_ == 0 || histogram_.total() > 0),
                     "the statistics count ", elements_, " values in ", batches_.size(), " batches and ", histogram_.total(),
                     " in the histogram");
  for (const BatchRange& batch : batches_) {
    GALLEY_CHECK_INPUT(std::isfinite(batch.min) && std::isfinite(batch.max) && batch.min <= batch.max, "a batch has the invalid range ",
                       batch.min, "..", batch.max);
  }
  if (elements_ == 0) return;
  const double width = histogram_.width();
  const BatchRange all = range();
  GALLEY_CHECK_INPUT(static_cast<double>(histogram_.first() + 1) * width > static_cast<double>(all.min) &&
                         static_cast<double>(histogram_.last()) * width <= static_cast<double>(all.max),
                     "the histogram counts values outside ", all.min, "..", all.max);
  histogram_.cover(all.min, all.max);
}

void RangeStatistics::add(const float* values, int64_t samples, int64_t row, std::string_view name) {
  const int64_t count = samples * row;
  if (count == 0) return;
  const int64_t stride = histogram_stride(row);
  GALLEY_CHECK(stride_ == 0 || stride_ == stride, name, ": the size of samples changed (the histogram stride was ", stride_, ", now ",
               stride, "); all samples must have the same size");
  // Process pieces of rows that stay in the cache for both passes, and begin at multiples of the stride.
  const int64_t piece = std::max<int64_t>(1, kPiece / stride) * stride, pieces = (row + piece - 1) / piece;
  BatchRange range{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
  bool finite = true, counted = true;
  std::vector<Histogram::Counts> parts;
  std::mutex mutex;
  const auto count_rows = [&](bool scan) {
    parts.clear();
    parallel_for(samples * pieces, std::max<int64_t>(1, kPiece / row), [&](int64_t begin, int64_t end) {
      Histogram::Counts counts;
      BatchRange own{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
      bool all_finite = true, all_counted = true;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t offset = task % pieces * piece, length = std::min(piece, row - offset);
        const float* x = values + task / pieces * row + offset;
        if (scan) {
          const Extent extent = scan_extent(x, length);
          all_finite = all_finite && std::isfinite(extent.min) && std::isfinite(extent.max);
          own.min = std::min(own.min, extent.min);
          own.max = std::max(own.max, extent.max);
          all_counted = all_counted && all_finite && histogram_.covers(extent.min, extent.max);
        }
        if (all_counted) histogram_.count(x, length, stride, counts);
      }
      const std::lock_guard lock(mutex);
      finite = finite && all_finite;
      counted = counted && all_counted;
      range.min = std::min(range.min, own.min);
      range.max = std::max(range.max, own.max);
      parts.push_back(std::move(counts));
    });
  };
  count_rows(true);
  if (!finite) {
    const auto bad = std::find_if(values, values + count, [](float x) { return !std::isfinite(x); });
    const int64_t amount = std::count_if(values, values + count, [](float x) { return !std::isfinite(x); });
    throw Error(ErrorCode::kNumeric, cat(name, " has ", amount, " values of ", count, " that are not finite (first ",
                                         std::isnan(*bad) ? "NaN" : "infinity", ", in row ", (bad - values) / row, " of the batch)"))
        .suggest("look for NaN in the weights (galley-weights verify) and in the samples");
  }
  range.min += 0.0f;  // -0 becomes 0, because files and comparisons have one zero
  range.max += 0.0f;
  histogram_.cover(range.min, range.max);
  if (!counted) count_rows(false);
  for (const Histogram::Counts& part : parts) histogram_.add(part);
  stride_ = stride;
  batches_.push_back(range);
  elements_ += count;
}

void RangeStatistics::merge(const RangeStatistics& other, std::string_view name) {
  if (other.empty()) return;
  GALLEY_CHECK_INPUT(empty() || stride_ == other.stride_, name, ": the samples differ in size (histogram strides ", stride_, " and ",
                     other.stride_, ")");
  GALLEY_CHECK_INPUT(other.elements_ <= kCountLimit - elements_, name, ": too many values to merge");
  stride_ = other.stride_;
  elements_ += other.elements_;
  batches_.insert(batches_.end(), other.batches_.begin(), other.batches_.end());
  histogram_.merge(other.histogram_);
}

BatchRange RangeStatistics::range() const {
  GALLEY_ASSERT(!batches_.empty());
  BatchRange all = batches_.front();
  for (const BatchRange& batch : batches_) {
    all.min = std::min(all.min, batch.min);
    all.max = std::max(all.max, batch.max);
  }
  return all;
}

BatchRange RangeStatistics::moving_average(double c) const {
  GALLEY_ASSERT(!batches_.empty());
  BatchRange average = batches_.front();
  const auto rate = static_cast<float>(c);
  for (size_t i = 1; i < batches_.size(); ++i) {
    average.min = average.min + rate * (batches_[i].min - average.min);
    average.max = average.max + rate * (batches_[i].max - average.max);
  }
  return average;
}

}  // namespace galley
