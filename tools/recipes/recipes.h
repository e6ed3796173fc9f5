#pragma once
// galley-recipes: list, show, copy, validate and explain recipes; print their schema.

#include <string>
#include <vector>

#include "libcore/recipe/recipe.h"
#include "tools/common/tool.h"

namespace galley::tools {

class RecipesTool : public Tool {
 public:
  std::string name() const override { return "galley-recipes"; }
  std::string about() const override { return "Lists, shows, copies, validates and explains recipes."; }
  std::string examples() const override {
    return "  galley-recipes ls\n  galley-recipes cp fashion_mnist_cnn my.yaml\n  galley-recipes validate my.yaml\n"
           "  galley-recipes explain my.yaml train.optimizer.lr";
  }
  void add_options(Command& command) override;
  int run() override;
  std::vector<std::string> complete(const std::vector<std::string>& words) const override;

 private:
  int list() const;
  int show() const;
  int copy() const;
  int validate() const;
  int explain_key() const;
  int schema() const;
  LoadOptions load_options() const;

  Command verb(Command& command, const std::string& name, const std::string& about, int (RecipesTool::*action)() const);

  int (RecipesTool::*action_)() const = nullptr;
  std::vector<std::string> words_;  // what follows the verb
  std::vector<std::string> with_, unset_;
  bool force_ = false, no_clobber_ = false;
};

}  // namespace galley::tools
