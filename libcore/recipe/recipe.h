#pragma once
// What the tools call: a recipe by name or path, with fragments and overrides, as typed structs; and its printed forms.

#include <string>

#include "libcore/recipe/loader.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/sections.h"

namespace galley {

struct LoadedRecipe {
  Recipe recipe;
  LoadedTree source;  ///< The tree behind it: layers, places, what was read from the environment.
};

/// The schema of recipes with these components. The registry must outlive it.
Schema recipe_schema(const ComponentRegistry& registry);

/// Loads, reads and checks (check_recipe) a recipe. Throws one Error with all that is wrong (exit 3; 2 for an override that is none).
LoadedRecipe load_recipe(const std::string& recipe, const ComponentRegistry& registry, const LoadOptions& options);

/// An error that knows its key ("data.train.pipeline.2"), with the place of that key, or of the nearest one around it, in the recipe's
/// text.
Error with_place(const Error& error, const LoadedRecipe& loaded);

/// A RUN folder given as the recipe stands for its own weights, whatever its training started from: puts them into weights.load. Does
/// nothing, and returns false, for any other recipe and where a fragment or an override says what to load.
bool use_run_weights(LoadedRecipe& loaded);

enum class DumpKind { kMin, kFull, kOrigin };
/// YAML that load_recipe reads back to the same recipe: what differs from the defaults, everything, or everything with the places.
std::string dump_recipe(const LoadedRecipe& loaded, DumpKind kind);
/// The same for a recipe changed by the program (no places).
std::string dump_recipe(const Recipe& recipe, DumpKind kind);

/// A pipeline as YAML, a list of items, for galley.pipeline in the metadata of weights; and back. `name` is what errors (exit 4) call it.
std::string pipeline_text(const std::vector<Component>& pipeline, const ComponentRegistry& registry);
std::vector<Component> parse_pipeline(const std::string& text, const std::string& name, const ComponentRegistry& registry);

/// Makes data.root, model.path, the paths in weights.load and quantize.calibration absolute: RUN/recipe.yaml must not depend on the working
/// folder.
void make_paths_absolute(Recipe& recipe);

}  // namespace galley
