#pragma once
// From files and command line to one tree: includes, merging, --with fragments, overrides, references. What a key is called and
// what it holds comes from the schema; what it means is sections.h.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

struct LoadOptions {
  std::string recipes_folder;          ///< Built-in recipes and fragments: NAME is FOLDER/train/NAME.yaml, a/b is FOLDER/a/b.yaml.
  std::string tool_section = "train";  ///< Where an override's key is looked up that is not top-level.
  std::vector<std::string> with;       ///< Fragments, merged in order.
  std::vector<std::string> unset;      ///< Keys put back to their defaults, before the overrides.
  std::vector<std::string> overrides;  ///< "a.b=v", "a.b+=v", in order.
  std::string standard_input;          ///< The text for the recipe "-"; read by the tool.
  /// The environment; the process's where not given.
  std::function<std::optional<std::string>(const std::string&)> environment;
};

/// One layer of values and what put it there, lowest first: "include", "recipe", "with", "override", "unset".
struct RecipeLayer {
  std::string role;
  std::string name;
  YamlNode tree;
  std::vector<std::string> path;  ///< Of an override: the full key.
};

struct LoadedTree {
  YamlNode tree;  ///< Merged, references resolved.
  std::vector<RecipeLayer> layers;
  std::map<std::string, std::string> environment;  ///< What was read from it.
  std::string file;                                ///< The recipe's own file; "-" for standard input.
  std::string run_folder;                          ///< Where the recipe was given as a RUN folder, else empty.

  /// Whether a fragment, an override or --unset says something of this top-level key.
  bool changed(std::string_view key) const;
};

/// Whether a command-line argument is an override: the text before its first `=` (or `+=`) is a key path.
bool is_override(const std::string& argument);

/// Loads a recipe by built-in name, path, RUN folder or "-". Throws Error (exit 3; exit 2 for an override without valid syntax).
LoadedTree load_tree(const std::string& recipe, const Schema& schema, const LoadOptions& options);

/// The file of a built-in or path; an Error with near names where there is none.
std::string find_recipe(const std::string& recipe, const std::string& recipes_folder);

/// Names of all built-in recipes and fragments below the folder ("train/fashion_mnist_cnn"), sorted.
std::vector<std::string> list_recipes(const std::string& recipes_folder);

/// The chain of values of a key: default, includes, recipe, fragments, overrides, with their places; one line each.
std::string explain(const LoadedTree& loaded, const Schema& schema, const std::string& key, const LoadOptions& options);

}  // namespace galley
