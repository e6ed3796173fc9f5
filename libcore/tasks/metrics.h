#pragma once
// Metrics of an evaluation: sums over samples, never means of batch means, so that the result does not depend on the batch size.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// Names and values in a fixed order: {"loss", 0.31}, {"top1", 91.2}.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// The value of that name, or NaN.
double find_metric(const MetricValues& values, std::string_view name);

}  // namespace galley
