#pragma once
// Decides whether a recipe may continue a RUN.

#include <string>

#include "libcore/recipe/recipe.h"

namespace galley {

/// How the recipe that would continue a RUN differs from the recipe of the RUN.
struct ResumeCheck {
  bool same = false;    ///< No relevant key differs, including the duration.
  bool longer = false;  ///< Only the duration is longer.
};

/// Compares the recipe of a RUN with the one that would continue it. The duration may grow, and keys may differ that do not affect the
/// results of training (log, checkpoint, threads, device, sections of other tools, data.test, loading of data). For other differences
/// throws Error (kRecipe) that lists the keys.
ResumeCheck check_resume(const Recipe& old_recipe, const Recipe& new_recipe, const std::string& run);

}  // namespace galley
