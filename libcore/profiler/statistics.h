#pragma once
// Statistics of repeated timings: medians with intervals that assume nothing about the distribution, and the comparison of two.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// The value below which a share `q` (0..1) lies, linear between neighbours. NaN for no values.
double quantile(std::span<const double> sorted, double q);

struct Interval {
  double low = 0, high = 0;
};

/// 95 % confidence interval of the median by order statistics (Conover, Practical Nonparametric Statistics, 3.2): ranks
/// n/2 -+ 0.98 sqrt(n). From fewer than six values none exists: lowest and highest value.
Interval median_interval(std::span<const double> sorted);

/// What is told of one series, in its unit.
struct Summary {
  int64_t count = 0;
  double median = 0, mean = 0, min = 0, max = 0, p10 = 0, p90 = 0, p99 = 0;
  Interval interval;     // of the median, 95 %
  int64_t outliers = 0;  // outside the quartiles by more than 3 times their distance (Tukey's far-out fences)
  /// Half the interval's width over the median.
  double relative_error() const { return median > 0 ? (interval.high - interval.low) / (2 * median) : 0; }
};
Summary summarize(std::span<const double> values);

enum class Verdict { kFaster, kSlower, kSame, kCannotTell };
std::string_view verdict_name(Verdict verdict);  // "faster", "slower", "same", "cannot tell"

/// NEW against BASE from rounds in which BASE, NEW and BASE again were timed one after the other. The machine's state changes slowly
/// against a round, so the ratios within rounds are what is compared; BASE against itself is the noise floor of this very run.
struct RoundComparison {
  double change = 0;           // median of new/base - 1
  Interval interval;           // of it, 95 %
  double noise = 0;            // how far base is from itself: the farther end of the interval of its own ratio
  double smallest_effect = 0;  // the smallest change that this run could have told from noise
  Verdict verdict = Verdict::kCannotTell;
};
/// `equal_within`: changes up to that share count as the same. `least_effect`: changes up to that share are never told as faster or slower,
/// because two identical programs may differ by it in a way that repeating does not show. Series of equal length, at least one round.
RoundComparison compare_rounds(std::span<const double> base, std::span<const double> changed, std::span<const double> base_again,
                               double equal_within, double least_effect = 0);

}  // namespace galley
