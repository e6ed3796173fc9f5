#pragma once
// What ranks tell each other besides gradients: texts, metrics, decisions.

#include <optional>
#include <string>

#include "libcore/tasks/metrics.h"

namespace galley {

class Communicator;
struct Recipe;

/// Throws Error (kRecipe) if the recipe cannot be trained on that many ranks.
void check_ranks(const Recipe& recipe, int ranks);
/// The text of the lowest rank whose text is not empty; "" if all are.
std::string first_text(Communicator& ranks, const std::string& own);
/// Gives every rank the metrics of rank 0; absent: the evaluation was stopped.
void share_metrics(Communicator& ranks, std::optional<MetricValues>& metrics);

}  // namespace galley
