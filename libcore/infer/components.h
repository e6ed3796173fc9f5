#pragma once
// The components that a recipe may name, from the rooms that define them.

#include "libcore/recipe/sections.h"

namespace galley {

/// All components: models, sources, transforms, optimizers, schedules, losses, tokenizers, tasks.
const ComponentRegistry& recipe_components();

}  // namespace galley
