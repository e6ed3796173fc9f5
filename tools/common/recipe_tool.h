#pragma once
// Tools that take a recipe: RECIPE [key=value | key+=value]..., fragments, --unset, --dry-run, --dump-recipe, --explain and the short flags
// that are recorded as overrides (--threads, --device, --seed).

#include <memory>
#include <string>
#include <vector>

#include "libcore/recipe/recipe.h"
#include "tools/common/provenance.h"
#include "tools/common/tool.h"

namespace galley::tools {

/// Where built-in recipes are: $GALLEY_RECIPES, else share/galley/recipes beside the program's folder, else the source tree.
std::string recipes_folder();
/// Turns the words of a command line into recipe arguments and overrides (recipe.md: an argument is an override when the text before
/// its first `=` is a key path).
void split_arguments(const std::vector<std::string>& words, std::vector<std::string>& recipes, std::vector<std::string>& overrides);

class RecipeTool : public Tool {
 public:
  void add_options(CLI::App& app) override;
  /// Loads the recipe; answers --dump-recipe and --explain itself; then calls run_recipe.
  int run() override;
  std::vector<std::string> complete(const std::vector<std::string>& words) const override;

 protected:
  /// The recipe section in which an override's bare key is looked up: "train", "evaluate".
  virtual std::string section() const = 0;
  virtual int run_recipe(LoadedRecipe& loaded) = 0;
  /// Whether the tool writes something for -o.
  virtual std::string output_help() const { return ""; }

  /// Whether words after the recipe are the tool's inputs (inputs_); else a second one is an error.
  virtual bool takes_inputs() const { return false; }
  /// Whether the recipe is a RUN folder that brings its weights.
  virtual bool takes_run_weights(const LoadedRecipe& loaded) const;
  /// Whether the tool computes in the recipe's precision; those that make integers start from f32.
  virtual bool takes_precision() const { return true; }
  /// For tools that cannot work with initial weights: an error where a RUN folder holds none, or where another recipe names none.
  static void require_weights(LoadedRecipe& loaded);

  LoadOptions load_options() const;
  Provenance provenance(const Recipe& recipe, const std::string& recipe_text) const;
  /// Threads, device and seed of the recipe put into effect. Throws (exit 7) for a device that is not there.
  void apply_machine_settings(const Recipe& recipe) const;

  std::vector<std::string> words_;  // the positional words
  std::vector<std::string> with_, unset_, overrides_, inputs_;
  std::string recipe_, output_, dump_, explain_, device_;
  int64_t threads_ = 0;
  std::string seed_;
  bool dry_run_ = false;
};

}  // namespace galley::tools
