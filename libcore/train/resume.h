#pragma once
// Whether a RUN may be continued by a recipe: the rules of the recipe language's "Resume".

#include <string>

#include "libcore/recipe/recipe.h"

namespace galley {

struct ResumeCheck {
  bool same = false;    // nothing differs that matters, the duration included
  bool longer = false;  // only the duration grew
};

/// Compares the recipe of a RUN with the one that would continue it. A longer duration and keys that do not change the numbers of a
/// training (log, checkpoint, threads, device, sections of other tools, data.test, how data is loaded) may differ; else throws Error
/// (kRecipe) that lists the keys and the cure.
ResumeCheck check_resume(const Recipe& old_recipe, const Recipe& new_recipe, const std::string& run);

}  // namespace galley
