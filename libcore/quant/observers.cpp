// Observers: compute the range of the integers from statistics.

#include "libcore/quant/observers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/quant/scan.h"

namespace galley {
namespace {

struct Range {
  double min = 0, max = 0;
};

/// The non-empty part of a histogram as doubles, without exact zeros, which every scheme represents exactly.
struct Bins {
  explicit Bins(const Histogram& histogram) : first(histogram.first()), width(histogram.width()) {
    for (int64_t bin = first, last = histogram.last(); bin <= last; ++bin) {
      const int64_t zeros = bin == 0 ? histogram.zeros() : 0;
      counts.push_back(static_cast<double>(histogram.count(bin) - zeros));
    }
    total = static_cast<double>(histogram.total());
    zeros = static_cast<double>(histogram.zeros());
  }
  int64_t size() const { return static_cast<int64_t>(counts.size()); }
  double edge(int64_t i) const { return static_cast<double>(first + i) * width; }

  std::vector<double> counts;
  int64_t first;
  double width, total = 0, zeros = 0;
};

double square_error(const Bins& bins, const QuantParams& p) {
  const QuantGrid grid{
      .step = p.scale, .low = static_cast<double>(p.qmin - p.zero_point), .high = static_cast<double>(p.qmax - p.zero_point)};
  return scan_square_error(bins.counts.data(), bins.size(), bins.first, bins.width, grid);
}

double square_signal(const Bins& bins) {
  double sum = 0;
  for (int64_t i = 0; i < bins.size(); ++i) {
    const double a = bins.edge(i), b = bins.edge(i + 1);
    sum += bins.counts[static_cast<size_t>(i)] * (a * a + a * b + b * b) / 3;
  }
  return sum;
}

double decibels(double signal, double noise) {
  return noise <= 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

QuantParams params_of(const Range& range, const ActivationScheme& scheme) {
  return scheme.symmetric ? symmetric_params(std::max(std::abs(range.min), std::abs(range.max)), scheme.range())
                          : affine_params(range.min, range.max, scheme.range());
}

/// Quantile of the histogram's values, 0 <= q <= 1; values are uniform within a bin.
double quantile(const Bins& bins, double q) {
  double wanted = q * bins.total;
  for (int64_t i = 0; i < bins.size(); ++i) {
    const bool zero = bins.first + i == 0;
    if (zero) {  // zeros are at the lower edge of their bin
      if (wanted < bins.zeros) return 0;
      wanted -= bins.zeros;
    }
    const double count = bins.counts[static_cast<size_t>(i)];
    if (count > 0 && wanted <= count) return bins.edge(i) + wanted / count * bins.width;
    wanted -= count;
  }
  return bins.edge(bins.size());
}

Range percentile_range(const Bins& bins, const Range& seen, double percentile, bool symmetric) {
  const double q = percentile / 100;
  if (!symmetric) return {std::max(seen.min, std::min(quantile(bins, 1 - q), 0.0)), std::min(seen.max, std::max(quantile(bins, q), 0.0))};
  // Percentile of absolute values: bins on both sides of 0 are folded together.
  double outside = (1 - q) * bins.total;
  const int64_t reach = std::max(std::abs(bins.first), std::abs(bins.first + bins.size()));
  for (int64_t bin = reach; bin-- > 0;) {
    double count = 0;
    for (const int64_t at : {bin, -bin - 1}) {
      if (at >= bins.first && at < bins.first + bins.size()) count += bins.counts[static_cast<size_t>(at - bins.first)];
    }
    if (count > 0 && outside < count) {
      const double bound = (static_cast<double>(bin + 1) - outside / count) * bins.width;
      const double largest = std::max(std::abs(seen.min), std::abs(seen.max));
      return {-std::min(bound, largest), std::min(bound, largest)};
    }
    outside -= count;
  }
  return {0, 0};
}

/// Scales both ends of the observed range by powers of 2: first a coarse grid search for the smallest error, then steps of decreasing size
/// around the best point.
Range mse_range(const Bins& bins, const Range& seen, const ActivationScheme& scheme) {
  constexpr int kPerOctave = 3, kOctaves = 10;
  const bool one_sided = scheme.symmetric || seen.min >= 0 || seen.max <= 0;
  const auto range_at = [&](double low, double high) { return Range{seen.min * std::exp2(-low), seen.max * std::exp2(-high)}; };
  const auto error_at = [&](double low, double high) { return square_error(bins, params_of(range_at(low, high), scheme)); };
  double low = 0, high = 0, best = error_at(0, 0);
  const auto attempt = [&](double l, double h) {
    if (l < 0 || h < 0) return false;
    const double error = error_at(l, h);
    if (!(error < best)) return false;
    best = error;
    low = l;
    high = h;
    return true;
  };
  for (int i = 0; i <= kOctaves * kPerOctave; ++i) {
    if (one_sided) {
      attempt(static_cast<double>(i) / kPerOctave, static_cast<double>(i) / kPerOctave);
      continue;
    }
    for (int j = 0; j <= kOctaves * kPerOctave; ++j) attempt(static_cast<double>(i) / kPerOctave, static_cast<double>(j) / kPerOctave);
  }
  for (double step = 0.5 / kPerOctave; step > 1.0 / 512; step /= 2) {
    bool better = true;
    while (better) {
      better = false;
      for (const double s : {step, -step}) {
        better = attempt(low + s, high + s) || better;
        if (one_sided) continue;
        better = attempt(low + s, high) || better;
        better = attempt(low, high + s) || better;
        better = attempt(low + s, high - s) || better;
      }
    }
  }
  return range_at(low, high);
}

/// KL(P || Q) for values clipped to a range. P: the bins inside the range, with outliers added to the first and last bin. Q: the bins
/// inside without outliers, with the count of each integer spread evenly over its non-empty bins (Migacz, "8-bit inference with TensorRT",
/// GTC 2017). A bin that is non-empty only in P counts as seen once.
double divergence(const Bins& bins, const QuantParams& p) {
  const double low = p.scale * (static_cast<double>(p.qmin - p.zero_point) - 0.5),
               high = p.scale * (static_cast<double>(p.qmax - p.zero_point) + 0.5);
  // Clamped before the conversion: the range may exceed the histogram by more than an integer holds.
  const auto bin_at = [&bins](double edge, int64_t least, int64_t most) {
    return static_cast<int64_t>(std::clamp(edge - static_cast<double>(bins.first), static_cast<double>(least), static_cast<double>(most)));
  };
  const int64_t begin = bin_at(std::floor(low / bins.width), 0, bins.size() - 1),
                end = bin_at(std::ceil(high / bins.width), begin + 1, bins.size());
  std::vector<double> inside(bins.counts.begin() + begin, bins.counts.begin() + end);
  std::vector<double> clipped = inside;
  for (int64_t i = 0; i < begin; ++i) clipped.front() += bins.counts[static_cast<size_t>(i)];
  for (int64_t i = end; i < bins.size(); ++i) clipped.back() += bins.counts[static_cast<size_t>(i)];
  const auto integer_of = [&](int64_t i) { return std::nearbyint((bins.edge(begin + i) + bins.width / 2) / p.scale); };
  std::vector<double> spread(inside.size());
  const auto size = static_cast<int64_t>(inside.size());
  for (int64_t i = 0; i < size;) {
    int64_t last = i;
    double sum = 0, filled = 0;
    for (const double integer = integer_of(i); last < size && integer_of(last) == integer; ++last) {
      sum += inside[static_cast<size_t>(last)];
      filled += clipped[static_cast<size_t>(last)] > 0 ? 1 : 0;
    }
    for (int64_t j = i; j < last; ++j) {
      if (clipped[static_cast<size_t>(j)] > 0) spread[static_cast<size_t>(j)] = sum > 0 ? sum / filled : 1;
    }
    i = last;
  }
  double p_sum = 0, q_sum = 0, sum = 0;
  for (size_t i = 0; i < spread.size(); ++i) {
    p_sum += clipped[i];
    q_sum += spread[i];
  }
  for (size_t i = 0; i < spread.size(); ++i) {
    if (clipped[i] > 0) sum += clipped[i] * std::log(clipped[i] * q_sum / (p_sum * spread[i]));
  }
  return p_sum > 0 ? sum / p_sum : 0;
}

Range entropy_range(const Bins& bins, const Range& seen, const ActivationScheme& scheme) {
  constexpr int kPerOctave = 16, kOctaves = 6;
  Range best = seen;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kOctaves * kPerOctave; ++i) {
    const double share = std::exp2(-static_cast<double>(i) / kPerOctave);
    const Range range{seen.min * share, seen.max * share};
    const QuantParams params = params_of(range, scheme);
    // With fewer than two bins per integer, rounding cannot be assessed.
    if (i > 0 && params.scale < 2 * bins.width) break;
    const double d = divergence(bins, params);
    if (d < least) {
      least = d;
      best = range;
    }
  }
  return best;
}

/// Like PyTorch's HistogramObserver: 2048 bins over the observed range. The end at which more bins hold the next 1e-5 of the values moves
/// inwards while the squared error of 256 uniform levels decreases (256 for 7 bits too).
Range histogram_range(const Bins& bins, const Range& seen) {
  constexpr int64_t kCells = 2048;
  constexpr double kStep = 1e-5, kLevels = 256;
  const double width = (seen.max - seen.min) / static_cast<double>(kCells);
  if (!(width > 0)) return seen;
  std::vector<double> cells(static_cast<size_t>(kCells));
  const auto put = [&](double from, double to, double count) {
    // Distribute the count uniformly over the cells that overlap [from, to).
    const double a = std::clamp((from - seen.min) / width, 0.0, static_cast<double>(kCells)),
                 b = std::clamp((to - seen.min) / width, 0.0, static_cast<double>(kCells));
    if (b <= a) {
      cells[static_cast<size_t>(std::clamp<int64_t>(static_cast<int64_t>(a), 0, kCells - 1))] += count;
      return;
    }
    for (auto c = static_cast<int64_t>(a); c < kCells && static_cast<double>(c) < b; ++c) {
      const double share = (std::min(b, static_cast<double>(c + 1)) - std::max(a, static_cast<double>(c))) / (b - a);
      cells[static_cast<size_t>(c)] += count * share;
    }
  };
  for (int64_t i = 0; i < bins.size(); ++i) {
    if (bins.counts[static_cast<size_t>(i)] > 0) put(bins.edge(i), bins.edge(i + 1), bins.counts[static_cast<size_t>(i)]);
  }
  if (bins.zeros > 0) put(0, 0, bins.zeros);
  std::vector<double> sums;
  double total = 0;
  for (double cell : cells) sums.push_back(total += cell);
  const auto error_of = [&](int64_t start, int64_t end) {
    // Error in units of cells from `start`; integer k represents the middle of its interval.
    const double step = static_cast<double>(end - start + 1) / kLevels;
    return scan_square_error(cells.data(), kCells, -start, 1, {.step = step, .shift = 0.5, .low = 0, .high = kLevels - 1});
  };
  int64_t start = 0, end = kCells - 1;
  double alpha = 0, beta = 1, least = std::numeric_limits<double>::infinity();
  while (alpha < beta) {
    const double next_alpha = alpha + kStep, next_beta = beta - kStep;
    int64_t left = start, right = end;
    while (left < end && sums[static_cast<size_t>(left)] < next_alpha * total) ++left;
    while (right > start && sums[static_cast<size_t>(right)] > next_beta * total) --right;
    int64_t next_start = start, next_end = end;
    if (left - start > end - right) {
      next_start = left;
      alpha = next_alpha;
    } else {
      next_end = right;
      beta = next_beta;
    }
    if (next_start == start && next_end == end) continue;
    const double error = error_of(next_start, next_end);
    if (error > least) break;
    least = error;
    start = next_start;
    end = next_end;
  }
  return {seen.min + width * static_cast<double>(start), seen.min + width * static_cast<double>(end + 1)};
}

Range range_of(ObserverType type, const RangeStatistics& statistics, const Bins& bins, const ActivationScheme& scheme) {
  const BatchRange all = statistics.range();
  const Range seen{static_cast<double>(all.min), static_cast<double>(all.max)};
  const Range with_zero{std::min(seen.min, 0.0), std::max(seen.max, 0.0)};
  switch (type) {
    case ObserverType::kMinMax:
    case ObserverType::kAuto: return seen;
    case ObserverType::kMovingAverage: {
      const BatchRange average = statistics.moving_average(scheme.observer.averaging_constant);
      return {static_cast<double>(average.min), static_cast<double>(average.max)};
    }
    case ObserverType::kHistogram: return histogram_range(bins, seen);
    case ObserverType::kPercentile: return percentile_range(bins, with_zero, scheme.observer.percentile, scheme.symmetric);
    case ObserverType::kEntropy: return entropy_range(bins, with_zero, scheme);
    case ObserverType::kMse: return mse_range(bins, with_zero, scheme);
  }
  GALLEY_ASSERT(false);
}

}  // namespace

ObservedRange observe(const RangeStatistics& statistics, const ActivationScheme& scheme) {
  if (statistics.empty()) fail(ErrorCode::kNumeric, "the observed value has no data");
  const Bins bins(statistics.histogram());
  const double signal = square_signal(bins);
  const auto observed = [&](ObserverType type) {
    const Range range = range_of(type, statistics, bins, scheme);
    ObservedRange result{.observer = type, .params = params_of(range, scheme)};
    result.min = std::min(range.min, 0.0);
    result.max = std::max(range.max, 0.0);
    result.sqnr_db = decibels(signal, square_error(bins, result.params));
    return result;
  };
  if (scheme.observer.type != ObserverType::kAuto) return observed(scheme.observer.type);
  ObservedRange best = observed(ObserverType::kMinMax);
  for (const ObserverType type :
       {ObserverType::kMovingAverage, ObserverType::kHistogram, ObserverType::kPercentile, ObserverType::kEntropy, ObserverType::kMse}) {
    const ObservedRange other = observed(type);
    if (other.sqnr_db > best.sqnr_db) best = other;
  }
  return best;
}

bool observes_f8(ObserverType type) {
  return type == ObserverType::kMinMax || type == ObserverType::kMovingAverage || type == ObserverType::kPercentile ||
         type == ObserverType::kAuto;
}

float choose_f8_scale(const RangeStatistics& statistics, const ObserverSpec& observer) {
  if (statistics.empty()) fail(ErrorCode::kNumeric, "the observed value has no data");
  if (!observes_f8(observer.type))
    fail(ErrorCode::kRecipe, "the observer ", observer.str(), " looks for the error of integers, not of f8_e4m3");
  const Range range = range_of(observer.type, statistics, Bins(statistics.histogram()), {.symmetric = true, .observer = observer});
  return f8_scale(std::max(std::abs(range.min), std::abs(range.max)));
}

double histogram_mse(const Histogram& histogram, const QuantParams& params) {
  const Bins bins(histogram);
  return bins.total > 0 ? square_error(bins, params) / bins.total : 0;
}

double histogram_sqnr_db(const Histogram& histogram, const QuantParams& params) {
  const Bins bins(histogram);
  return decibels(square_signal(bins), square_error(bins, params));
}

}  // namespace galley
