#pragma once
// The entry point for tools: loads a recipe by name or path, with fragments and overrides, into typed structs, and prints it.

#include <string>

#include "libcore/recipe/loader.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/sections.h"

namespace galley {

/// A recipe and the tree that it was read from.
struct LoadedRecipe {
  Recipe recipe;
  LoadedTree source;  ///< Layers, places, and the environment variables read.
};

/// The schema of recipes with these components. The registry must outlive it.
Schema recipe_schema(const ComponentRegistry& registry);

/// Loads, reads and checks (check_recipe) a recipe. Throws one Error that holds all errors (exit 3; exit 2 for an override with invalid
/// syntax).
LoadedRecipe load_recipe(const std::string& recipe, const ComponentRegistry& registry, const LoadOptions& options);

/// Adds to an error with a key ("data.train.pipeline.2") the place of that key, or of the nearest enclosing key, in the recipe's text.
Error with_place(const Error& error, const LoadedRecipe& loaded);

/// If the recipe is a RUN folder, sets weights.load to the weights of that run instead of those that its training started from. Does
/// nothing and returns false for any other recipe, and if a fragment or an override sets `weights`.
bool use_run_weights(LoadedRecipe& loaded);

enum class DumpKind { kMin, kFull, kOrigin };
/// YAML that load_recipe reads back to the same recipe. kMin: keys that differ from their defaults; kFull: all keys; kOrigin: all keys
/// with their places.
std::string dump_recipe(const LoadedRecipe& loaded, DumpKind kind);
/// The same for a recipe that the program changed. It has no places.
std::string dump_recipe(const Recipe& recipe, DumpKind kind);

/// Writes a pipeline as a YAML list, as stored in the metadata of weights (galley.pipeline), and parses it. Errors (exit 4) call the text
/// `name`.
std::string pipeline_text(const std::vector<Component>& pipeline, const ComponentRegistry& registry);
std::vector<Component> parse_pipeline(const std::string& text, const std::string& name, const ComponentRegistry& registry);

/// Makes data.root, model.path, quantize.calibration and the paths in weights.load absolute, since RUN/recipe.yaml must not depend on the
/// working folder.
void make_paths_absolute(Recipe& recipe);

}  // namespace galley
