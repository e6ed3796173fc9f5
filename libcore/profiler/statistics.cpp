#include "libcore/profiler/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "libcore/base/error.h"

namespace galley {

double quantile(std::span<const double> sorted, double q) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Interval median_interval(std::span<const double> sorted) {
  GALLEY_ASSERT(!sorted.empty());
  const auto count = static_cast<double>(sorted.size());
  const double reach = 0.98 * std::sqrt(count);  // 1.96 standard deviations of the binomial(n, 1/2) rank
  // Ranks count from 1; rounding outwards keeps at least 95 % coverage.
  const auto low = static_cast<int64_t>(std::floor(count / 2 - reach)), high = static_cast<int64_t>(std::ceil(count / 2 + 1 + reach));
  const auto last = static_cast<int64_t>(sorted.size());
  return {sorted[static_cast<size_t>(std::clamp<int64_t>(low, 1, last) - 1)],
          sorted[static_cast<size_t>(std::clamp<int64_t>(high, 1, last) - 1)]};
}

Summary summarize(std::span<const double> values) {
  Summary summary;
  summary.count = static_cast<int64_t>(values.size());
  if (values.empty()) return summary;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  summary.median = quantile(sorted, 0.5);
  summary.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  summary.min = sorted.front();
  summary.max = sorted.back();
  summary.p10 = quantile(sorted, 0.1);
  summary.p90 = quantile(sorted, 0.9);
  summary.p99 = quantile(sorted, 0.99);
  summary.interval = median_interval(sorted);
  const double q1 = quantile(sorted, 0.25), q3 = quantile(sorted, 0.75), fence = 3 * (q3 - q1);
  summary.outliers = std::count_if(sorted.begin(), sorted.end(), [&](double value) { return value < q1 - fence || value > q3 + fence; });
  return summary;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster: return "faster";
    case Verdict::kSlower: return "slower";
    case Verdict::kSame: return "same";
    case Verdict::kCannotTell: break;
  }
  return "cannot tell";
}

RoundComparison compare_rounds(std::span<const double> base, std::span<const double> changed, std::span<const double> base_again,
                               double equal_within, double min_effect) {
  GALLEY_ASSERT(!base.empty() && base.size() == changed.size() && base.size() == base_again.size());
  std::vector<double> change, noise;
  for (size_t i = 0; i < base.size(); ++i) {
    // The changed run is between two base runs; their geometric mean cancels a linear drift of the machine.
    change.push_back(std::log(changed[i] / std::sqrt(base[i] * base_again[i])));
    noise.push_back(std::log(base_again[i] / base[i]));
  }
  std::sort(change.begin(), change.end());
  std::sort(noise.begin(), noise.end());
  const Interval own = median_interval(noise), other = median_interval(change);
  RoundComparison result;
  result.change = std::expm1(quantile(change, 0.5));
  result.interval = {std::expm1(other.low), std::expm1(other.high)};
  result.noise = std::expm1(std::max(std::abs(own.low), std::abs(own.high)));
  const double floor = std::max({equal_within, result.noise, min_effect});
  result.smallest_effect = floor + (result.interval.high - result.interval.low) / 2;
  if (base.size() < 6) return result;
  if (result.interval.low > floor) {
    result.verdict = Verdict::kSlower;
  } else if (result.interval.high < -floor) {
    result.verdict = Verdict::kFaster;
  } else if (result.interval.low >= -equal_within && result.interval.high <= equal_within) {
    result.verdict = Verdict::kSame;
  }
  return result;
}

}  // namespace galley
