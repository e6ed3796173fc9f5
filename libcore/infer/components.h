#pragma once
// The components that a recipe may name, collected from the rooms that define them.

#include "libcore/recipe/sections.h"

namespace galley {

const ComponentRegistry& recipe_components();

}  // namespace galley
