#pragma once
// Base of tools that take a recipe: RECIPE [key=value | key+=value]..., fragments, --unset, --dry-run, --dump-recipe, --explain and the
// flags that are recorded as overrides (--threads, --device, --seed).

#include <memory>
#include <string>
#include <vector>

#include "libcore/recipe/recipe.h"
#include "tools/common/provenance.h"
#include "tools/common/tool.h"

namespace galley::tools {

/// The folder of the built-in recipes: $GALLEY_RECIPES, otherwise share/galley/recipes next to the program's folder, otherwise the source
/// tree.
std::string recipes_folder();
/// Splits the words of a command line into recipes and overrides (recipe.md: a word is an override if the text before its first `=` is a
/// key path).
void split_arguments(const std::vector<std::string>& words, std::vector<std::string>& recipes, std::vector<std::string>& overrides);

/// Warns of keys of `sharding` that the recipe's strategy does not use, with their places.
void warn_unused_sharding(const LoadedRecipe& loaded);

class RecipeTool : public Tool {
 public:
  void add_options(Command& command) override;
  /// Loads the recipe; handles --dump-recipe and --explain; otherwise calls run_recipe.
  int run() override;
  std::vector<std::string> complete(const std::vector<std::string>& words) const override;

 protected:
  /// The recipe section in which keys of overrides without a section are looked up: "train", "evaluate".
  virtual std::string section() const = 0;
  virtual int run_recipe(LoadedRecipe& loaded) = 0;
  /// Help text for -o, "" if the tool has no -o.
  virtual std::string output_help() const { return ""; }

  /// Whether words after the recipe are inputs of the tool (inputs_); otherwise a second word is an error.
  virtual bool takes_inputs() const { return false; }
  /// Whether the recipe is a RUN folder with weights.
  virtual bool takes_run_weights(const LoadedRecipe& loaded) const;
  /// Whether the tool runs the model on this machine.
  virtual bool computes_here() const { return true; }
  /// Whether the tool uses the recipe's precision; tools that quantize start from f32.
  virtual bool takes_precision() const { return true; }
  /// For tools that need trained weights: throws Error if the RUN folder or recipe provides none.
  static void require_weights(LoadedRecipe& loaded);

  LoadOptions load_options() const;
  Provenance provenance(const Recipe& recipe, const std::string& recipe_text) const;
  /// Applies the recipe's threads and device. Throws Error if the device is not available.
  void apply_machine_settings(const Recipe& recipe) const;

  std::vector<std::string> words_;  // positional arguments
  std::vector<std::string> with_, unset_, overrides_, inputs_;
  std::string recipe_, output_, dump_, explain_, device_;
  int64_t threads_ = 0;
  std::string seed_;
  bool dry_run_ = false;
};

}  // namespace galley::tools
