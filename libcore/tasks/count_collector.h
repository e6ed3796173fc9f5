#pragma once
// Collectors that count: ranks that evaluate parts of the samples add up their counts.

#include <span>
#include <vector>

#include "libcore/tasks/task.h"

namespace galley {

/// A collector that computes metrics from counts, which can be added over ranks.
class CountCollector : public Collector {
 public:
  /// Whether the counts alone determine all metrics.
  virtual bool only_counts() const = 0;
  /// The sums so far, always as many. Whole numbers are exact up to 2^53.
  virtual std::vector<double> counts() const = 0;
  virtual void set_counts(std::span<const double> counts) = 0;
};

}  // namespace galley
