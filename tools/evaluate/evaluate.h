#pragma once
// galley-evaluate: metrics of a recipe's model with given weights over a split of its data.

#include "libcore/infer/session.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {

class EvaluateTool : public RecipeTool {
 public:
  std::string name() const override { return "galley-evaluate"; }
  std::string about() const override { return "Measures a model's metrics on a split of its data (evaluate.data, default val)."; }
  std::string examples() const override {
    return "  galley-evaluate runs/first\n  galley-evaluate fashion_mnist_cnn weights=model.safetensors --format json\n  galley-evaluate "
           "runs/first evaluate.data=test data.test.batch=64\n"
           "  galley-evaluate runs/first --against runs/second";
  }
  void add_options(Command& command) override;

 protected:
  std::string section() const override { return "evaluate"; }
  int run_recipe(LoadedRecipe& loaded) override;

 private:
  int print_fits(const Recipe& recipe) const;
  void warn_of_other_categories(Session& session, const std::string& split) const;
  int compare(Session& session, int64_t batch);

  std::string against_;
};

}  // namespace galley::tools
