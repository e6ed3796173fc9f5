#pragma once
// Checks of a recipe's model and training that need no data.

#include "libcore/recipe/recipe.h"

namespace galley {

struct RunLength;

/// Builds the model of a recipe for two samples of its default input and checks loss, metrics and selectors with it, and the options of
/// transforms. Throws the errors that the tools would throw.
void check_model(const Recipe& recipe);

/// Throws (kRecipe) with the key if a duration of the recipe cannot be converted to steps of this run.
void check_durations(const Recipe& recipe, const RunLength& run);

}  // namespace galley
