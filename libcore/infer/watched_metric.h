#pragma once
// Metrics that a recipe watches: the evaluations must compute them.

#include <string>
#include <vector>

namespace galley {

/// Throws (kRecipe, at `key`) unless `metric` is one of `given`, the metrics that evaluations compute; suggests the nearest name.
void require_metric(const std::vector<std::string>& given, const std::string& metric, const std::string& key);

}  // namespace galley
