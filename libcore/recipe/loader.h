#pragma once
// Loads files and command line into one tree: includes, merging, --with fragments, overrides, references. The schema defines names and
// types of the keys, sections.h their meaning.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

/// Options of load_tree.
struct LoadOptions {
  std::string recipes_folder;          ///< Built-in recipes and fragments: NAME is FOLDER/train/NAME.yaml, a/b is FOLDER/a/b.yaml.
  std::string tool_section = "train";  ///< Section in which an override's key is looked up if it is not top-level.
  std::vector<std::string> with;       ///< Fragments, merged in order.
  std::vector<std::string> unset;      ///< Keys reset to their defaults, before the overrides.
  std::vector<std::string> overrides;  ///< "a.b=v", "a.b+=v", in order.
  std::string standard_input;          ///< Text of the recipe "-". The tool reads it.
  /// Reads an environment variable; default: from the process's environment.
  std::function<std::optional<std::string>(const std::string&)> environment;
};

/// One layer of values. Its role is "hub" (the folder of a model of the type hub), "include", "recipe", "with", "override" or "unset".
struct RecipeLayer {
  std::string role;
  std::string name;
  YamlNode tree;
  std::vector<std::string> path;  ///< For an override: the full key.
};

/// The result of load_tree.
struct LoadedTree {
  YamlNode tree;                                   ///< Merged, with resolved references.
  std::vector<RecipeLayer> layers;                 ///< Lowest precedence first.
  std::map<std::string, std::string> environment;  ///< Variables that references read, and their values.
  std::string file;                                ///< The recipe's own file; "-" for standard input.
  std::string run_folder;                          ///< The RUN folder, if the recipe was given as one; else empty.

  /// Whether a fragment, an override or --unset sets this top-level key or a key below it.
  bool changed(std::string_view key) const;
};

/// Whether a command-line argument is an override: the text before its first `=` (or `+=`) is a key path.
bool is_override(const std::string& argument);

/// Loads a recipe by built-in name, path, RUN folder, hub folder (weights/hub.h) or "-". Throws Error (exit 3; exit 2 for an override
/// without valid syntax).
LoadedTree load_tree(const std::string& recipe, const Schema& schema, const LoadOptions& options);

/// The file of a built-in recipe, path or folder: of a hub folder its config.json. Throws an Error (kRecipe) with near names if it does not
/// exist.
std::string find_recipe(const std::string& recipe, const std::string& recipes_folder);

/// Names of all built-in recipes and fragments below the folder ("train/fashion_mnist_cnn"), sorted.
std::vector<std::string> list_recipes(const std::string& recipes_folder);

/// The chain of values of a key: default, includes, recipe, fragments, overrides, with their places; one line each.
std::string explain(const LoadedTree& loaded, const Schema& schema, const std::string& key, const LoadOptions& options);

}  // namespace galley
