#pragma once
// What is wrong with a recipe's model and its training, as far as that is known before data are read.

#include "libcore/recipe/recipe.h"

namespace galley {

struct RunLength;

/// Builds the model of a recipe on a batch of two of its usual input, and checks loss, metrics and selectors against it, and the options of
/// transforms: all that can be known without data. Throws as the tools would.
void check_model(const Recipe& recipe);

/// Throws (kRecipe), naming the key, where a duration of the recipe cannot be told in steps of such a run.
void check_durations(const Recipe& recipe, const RunLength& run);

}  // namespace galley
