#pragma once
// Metrics of an evaluation. They are sums over samples, not means of batch means, so that results do not depend on the batch size.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// Names and values in a fixed order: {"loss", 0.31}, {"top1", 91.2}.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// The value of a metric, or NaN if there is none of that name.
double find_metric(const MetricValues& values, std::string_view name);

}  // namespace galley
