#pragma once
// Statistics of repeated timings: distribution-free confidence intervals of medians, and the comparison of two series.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// The q-quantile (0..1) of sorted values, linearly interpolated; NaN for no values.
double quantile(std::span<const double> sorted, double q);

struct Interval {
  double low = 0, high = 0;
};

/// 95 % confidence interval of the median by order statistics (Conover, Practical Nonparametric Statistics, 3.2): ranks n/2 -+ 0.98
/// sqrt(n). It does not exist for fewer than six values; then the smallest and largest value are returned.
Interval median_interval(std::span<const double> sorted);

/// Summary of one series, in its unit.
struct Summary {
  int64_t count = 0;
  double median = 0, mean = 0, min = 0, max = 0, p10 = 0, p90 = 0, p99 = 0;
  Interval interval;     // 95 % confidence interval of the median
  int64_t outliers = 0;  // values more than 3 interquartile ranges outside the quartiles (Tukey's far-out fences)
  /// Half the width of the interval relative to the median.
  double relative_error() const { return median > 0 ? (interval.high - interval.low) / (2 * median) : 0; }
};
Summary summarize(std::span<const double> values);

enum class Verdict { kFaster, kSlower, kSame, kCannotTell };
std::string_view verdict_name(Verdict verdict);  // "faster", "slower", "same", "cannot tell"

/// Comparison of NEW with BASE from rounds that time BASE, NEW and BASE again in succession. The state of the machine changes slowly
/// compared with a round, so ratios within rounds are compared. BASE against itself gives the noise floor of the run.
struct RoundComparison {
  double change = 0;           // median of new/base - 1
  Interval interval;           // 95 % confidence interval of the change
  double noise = 0;            // noise floor: the larger end of the interval of base/base - 1, as a magnitude
  double smallest_effect = 0;  // the smallest change that this run could have detected
  Verdict verdict = Verdict::kCannotTell;
};
/// `equal_within`: changes up to this fraction count as the same. `min_effect`: changes up to this fraction are never reported as faster
/// or slower, because identical programs can differ by as much in a way that repetition does not reveal. The series must have equal lengths
/// of at least one round.
RoundComparison compare_rounds(std::span<const double> base, std::span<const double> changed, std::span<const double> base_again,
                               double equal_within, double min_effect = 0);

}  // namespace galley
